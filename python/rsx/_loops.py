"""``torch.while_loop`` inside one program.

Condition and body are recorded once and become one op of the program they stand in: no host wait, no cut, whether the call
is recorded (``rsx.jit``, ``torch.compile(backend="rsx")``) or not.

Gradients: the loop keeps what each of its iterations began with on a tape that only the device knows the length of. The
gradient of the body is recorded once as well; the backward pass is one op that walks the tape from its end.

Where that cannot be (random numbers, a value read on the host, sizes that change from iteration to iteration, numbers that
are carried) the predicate is read once per iteration: right, and counted as ``item``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import _disable_current_modes

from rsx import _C


def while_loop(
    cond_fn: Any, body_fn: Any, carried: tuple, additional: tuple, stack_output: bool = False, mutated_arg_indices: str = ""
) -> tuple:
    """``torch.while_loop`` on rsx tensors."""
    plain = not stack_output and not mutated_arg_indices
    loop = _known(_record, cond_fn, body_fn, carried, additional) if plain else None
    if loop is None:
        from torch._higher_order_ops.while_loop import while_loop_dense

        more = {} if plain else {"stack_output": stack_output, "mutated_arg_indices": mutated_arg_indices}
        return while_loop_dense(cond_fn, body_fn, carried, additional, **more)
    return tuple(torch.ops.rsx.while_loop(_dense(carried), _dense(_tensors(additional)), loop))


def while_loop_autograd(cond_fn: Any, body_fn: Any, carried: tuple, additional: tuple, *rest: Any, **named: Any) -> Any:
    """The same where gradients may be asked for."""
    from torch._higher_order_ops.while_loop import while_loop_autograd, while_loop_op

    operands = (*carried, *additional)
    if not (torch.is_grad_enabled() and any(_needs_grad(x) for x in operands)):
        with torch._C._AutoDispatchBelowAutograd():
            return while_loop_op(cond_fn, body_fn, carried, additional, *rest, **named)
    needed = tuple(_needs_grad(x) for x in additional)
    pair = None if rest or any(named.values()) else _known(_record_pair, cond_fn, body_fn, carried, additional, needed)
    if pair is None and (rest or any(named.values()) or any(type(x) in _TRACED for x in operands)):
        return while_loop_autograd(cond_fn, body_fn, carried, additional, *rest, **named)
    if pair is None:
        return _by_host(cond_fn, body_fn, carried, additional)
    return _WithGradients.apply(pair, cond_fn, body_fn, len(carried), *operands)


_WRITTEN = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor that a "
    "while_loop began with. Derivatives of its gradients need it"
)


def _is_constant(x: Any) -> bool:
    return not isinstance(x, torch.Tensor) or x.is_inference()


class _WithGradients(torch.autograd.Function):
    """A loop that keeps a tape, and the loop that walks it backwards."""

    @staticmethod
    def forward(ctx: Any, pair: _Pair, cond_fn: Any, body_fn: Any, count: int, *operands: Any) -> tuple:
        carried, additional = operands[:count], _tensors(operands[count:])
        zero = torch.zeros((), dtype=torch.int64, device="rsx")
        *outs, tape = torch.ops.rsx.while_loop_kept([*_dense(carried), zero], _dense(additional), pair.forward)
        ctx.pair, ctx.functions, ctx.count, ctx.tape = pair, (cond_fn, body_fn), count, tape
        ctx.numbers = [None if isinstance(x, torch.Tensor) else x for x in operands]
        # What is carried is on the tape: only derivatives of the gradients want it, and it may be written until then.
        ctx.carried = [(x, None if _is_constant(x) else x._version) for x in carried]
        ctx.save_for_backward(zero, *additional)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple:
        saved = iter(ctx.saved_tensors[1:])
        operands = [x for x, _ in ctx.carried]
        operands += [next(saved) if x is None else x for x in ctx.numbers[ctx.count :]]
        if torch.is_grad_enabled():
            if any(version is not None and x._version != version for x, version in ctx.carried):
                raise RuntimeError(_WRITTEN)
            return None, None, None, None, *_differentiable(ctx, operands, grads)
        pair, additional = ctx.pair, _tensors(operands[ctx.count :])
        start = [grads[i].contiguous() for i in pair.carried]
        start += [torch.zeros(additional[i].shape, dtype=additional[i].dtype, device="rsx") for i in pair.summed]
        constant = _dense([additional[i] for i in pair.constant])
        outs = torch.ops.rsx.while_loop_back(start, [ctx.tape, *constant], pair.backward)
        found: list = [None] * len(operands)
        places = [i for i, x in enumerate(operands) if i >= ctx.count and isinstance(x, torch.Tensor)]
        for place, grad in zip([*pair.carried, *(places[i] for i in pair.summed)], outs, strict=True):
            found[place] = grad
        return None, None, None, None, *found


def _differentiable(ctx: Any, operands: list, grads: tuple) -> list:
    """Gradients that can be differentiated again: the loop is run anew, by the host."""
    count = ctx.count
    outs = _by_host(*ctx.functions, tuple(operands[:count]), tuple(operands[count:]))
    pairs = [(o, g) for o, g in zip(outs, grads, strict=True) if _needs_grad(o)]
    wanted = [x for x in operands if _needs_grad(x)]
    outs, grads = [o for o, _ in pairs], [g for _, g in pairs]
    found = iter(torch.autograd.grad(outs, wanted, grads, create_graph=True, allow_unused=True) if pairs else ())
    return [next(found, None) if _needs_grad(x) else None for x in operands]


def _by_host(cond_fn: Any, body_fn: Any, carried: tuple, additional: tuple) -> tuple:
    """The loop in Python, with the gradients that its iterations have. (PyTorch 2.13's own formula computes all of them
    from the last iteration, and one for a loop that does not iterate; with random numbers it draws others.)"""
    values = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in carried)
    while cond_fn(*values, *additional):
        values = body_fn(*values, *additional)
    return values


def _needs_grad(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _tensors(args: Any) -> list:
    return [x for x in args if isinstance(x, torch.Tensor)]


def _dense(args: Any) -> list:
    return [x.contiguous() for x in args]


# Recording: once per body, condition and kind of operands.


@dataclasses.dataclass(frozen=True)
class _Kinds:
    """What a loop's functions are called with."""

    carried: tuple
    """Shape and element type of each."""
    additional: tuple
    """The same, or a number, which is constant."""

    @property
    def tensors(self) -> list:
        return [k for k in self.additional if isinstance(k, tuple)]

    def call(self, fn: Callable, args: Any) -> Any:
        """``fn`` with the numbers in their places."""
        rest = iter(args[len(self.carried) :])
        return fn(*args[: len(self.carried)], *(next(rest) if isinstance(k, tuple) else k for k in self.additional))


@dataclasses.dataclass(frozen=True)
class _Pair:
    """A loop with a tape and the one that walks it. Indices: of carried values and of additional tensors."""

    forward: int
    backward: int
    carried: list[int]
    """Carried values that have gradients."""
    summed: list[int]
    """Additional tensors whose gradients add up."""
    constant: list[int]
    """Additional tensors that the gradient is computed from."""


_LOOPS = "_rsx_loops"
"""Attribute of a body: what was recorded, by its condition and the kind of its operands."""


def _known(record: Callable, cond_fn: Any, body_fn: Any, carried: tuple, additional: tuple, *more: Any) -> Any:
    """What ``record`` made of it; None if it cannot be recorded."""
    if not isinstance(body_fn, torch.fx.GraphModule) or not isinstance(cond_fn, torch.fx.GraphModule) or not carried:
        return None
    if not all(map(_is_fit, carried)) or not all(type(x) in (int, float, bool) or _is_fit(x) for x in additional):
        return None
    kind = lambda x: (x.shape, x.dtype) if isinstance(x, torch.Tensor) else x  # noqa: E731
    kinds = _Kinds(tuple(map(kind, carried)), tuple(map(kind, additional)))
    known = body_fn.__dict__.setdefault(_LOOPS, {})
    # 1, 1.0 and True are equal and are not the same.
    key = (record, id(cond_fn), kinds, tuple(type(k) for k in kinds.additional), *more)
    if key not in known:
        with _disable_current_modes():  # torch.compile traces the loop's op, not what is in it
            known[key] = (cond_fn, record(cond_fn, body_fn, kinds, *more))
    return known[key][1]


_TRACED = (FakeTensor, FunctionalTensor)


def _is_fit(x: Any) -> bool:
    plain = type(x) in (torch.Tensor, *_TRACED) and x.device.type == "rsx"
    return plain and all(type(n) is int for n in x.shape)


_TRUTH = [(torch.Size([]), torch.bool)]


def _record(cond_fn: Any, body_fn: Any, kinds: _Kinds) -> int | None:
    args = [*kinds.carried, *kinds.tensors]
    condition = _part(lambda *a: kinds.call(cond_fn, a).reshape(()), args, _TRUTH)
    body = _part(lambda *a: kinds.call(body_fn, a), args, list(kinds.carried)) if condition else None
    return _loop(condition, body, [])


def _record_pair(cond_fn: Any, body_fn: Any, kinds: _Kinds, needed: tuple) -> _Pair | None:
    found = _gradient(body_fn, kinds, needed)
    if found is None:
        return None
    graph, carried, summed, kept, constant = found
    count, starts = len(kinds.carried), [kinds.carried[i] for i in carried] + [kinds.tensors[i] for i in summed]
    back = _part(graph, starts + [kinds.carried[i] for i in kept] + [kinds.tensors[i] for i in constant], starts)
    backward = _C.loop_new(None, back) if back else None
    if backward is None:
        return None
    # The count of iterations is carried last.
    args = [*kinds.carried, (torch.Size([]), torch.int64), *kinds.tensors]
    without = lambda a: a[:count] + a[count + 1 :]  # noqa: E731
    condition = _part(lambda *a: kinds.call(cond_fn, without(a)).reshape(()), args, _TRUTH)
    step = lambda *a: (*kinds.call(body_fn, without(a)), a[count] + 1)  # noqa: E731
    body = _part(step, args, args[: count + 1]) if condition else None
    forward = _loop(condition, body, kept)
    return None if forward is None else _Pair(forward, backward, carried, summed, constant)


def _loop(condition: int | None, body: int | None, kept: list[int]) -> int | None:
    if condition and body:
        return _C.loop_new(condition, body, kept)
    if condition:
        _C.part_drop(condition)
    return None


def _gradient(body_fn: Any, kinds: _Kinds, needed: tuple) -> tuple | None:
    """One step of the backward pass, as a graph: of the gradients of what the body gave, the sums so far, what the
    iteration began with and additional tensors. Only what it needs is among its arguments."""
    from torch._higher_order_ops.utils import create_bw_fn
    from torch.fx.experimental.proxy_tensor import make_fx

    count, tensors = len(kinds.carried), kinds.tensors
    carried = [i for i, (_, dtype) in enumerate(kinds.carried) if dtype.is_floating_point]
    needed = tuple(n for n, k in zip(needed, kinds.additional, strict=True) if isinstance(k, tuple))
    summed = [i for i, n in enumerate(needed) if n]
    places = [*carried, *(count + i for i in summed)]

    def step(*a: Any) -> list:
        grads, operands = a[: len(places)], a[len(places) :]
        found = create_bw_fn(lambda *x: kinds.call(body_fn, x), operands)(*operands, *grads[: len(carried)])
        new = [found[i] for i in places]
        return new[: len(carried)] + [old + g for old, g in zip(grads[len(carried) :], new[len(carried) :], strict=True)]

    all_kinds = [*kinds.carried, *tensors]
    try:
        with FakeTensorMode(), torch.enable_grad():
            make = lambda k, grad: torch.empty(k[0], dtype=k[1], device="rsx", requires_grad=grad)  # noqa: E731
            operands = [make(k, i in places) for i, k in enumerate(all_kinds)]
            graph = make_fx(step)(*(make(all_kinds[i], False) for i in places), *operands)
    except Exception:  # noqa: BLE001 - whatever it is, PyTorch's own formula raises it too, if it is the user's
        return None
    graph.graph.eliminate_dead_code()
    inputs = list(graph.graph.find_nodes(op="placeholder"))
    unused = [n for n in inputs[len(places) :] if not n.users]
    used = [i for i, n in enumerate(inputs[len(places) :]) if n.users]
    for node in unused:
        graph.graph.erase_node(node)
    graph.recompile()
    return graph, carried, summed, [i for i in used if i < count], [i - count for i in used if i >= count]


def _part(fn: Any, kinds: list, results: list[tuple]) -> int | None:
    """``fn`` as a part of a loop. None if it is no function of its operands with such results."""
    _C.scratch_begin()
    try:
        args = [torch.empty(shape, dtype=dtype, device="rsx") for shape, dtype in kinds]
        with torch.no_grad():
            outs = fn(*args)
        outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
        if any(type(o) is not torch.Tensor for o in outs) or [(o.shape, o.dtype) for o in outs] != results:
            raise ValueError("results of another kind")
        outs = [o if _fills_its_storage(o) else o.clone(memory_format=torch.contiguous_format) for o in outs]
    except Exception:  # noqa: BLE001 - whatever it is, the loop run by the host raises it too, if it is the user's
        _C.scratch_abort()
        return None
    try:
        return torch.ops.rsx.loop_part(args, outs)
    except RuntimeError:
        return None


def _fills_its_storage(x: torch.Tensor) -> bool:
    return x.is_contiguous() and x.storage_offset() == 0 and x.untyped_storage().nbytes() == x.numel() * x.element_size()

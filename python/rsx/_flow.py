"""``torch.cond`` and ``torch.while_loop`` inside one program.

``torch.while_loop``: condition and body are recorded once and become one op of the program they stand in: no host wait, no
cut, whether the call is recorded (``rsx.jit``, ``torch.compile(backend="rsx")``) or not. Where that cannot be (random
numbers, a value read on the host, sizes that change from iteration to iteration, gradients through the loop) the predicate is
read once per iteration: right, and counted as ``item``.

``torch.cond``: where a call is being recorded both branches are computed and the predicate selects, so that nothing is read
on the host. Elsewhere, and where a branch writes its operands, the predicate is read: right, one host wait.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

from rsx import _C


def register() -> None:
    """Give the higher-order ops their kernels for the device."""
    from torch._higher_order_ops.cond import cond_op
    from torch._higher_order_ops.while_loop import while_loop_op

    cond_op.py_impl(torch._C.DispatchKey.PrivateUse1)(cond)
    while_loop_op.py_impl(torch._C.DispatchKey.PrivateUse1)(while_loop)
    while_loop_op.py_impl(torch._C.DispatchKey.AutogradPrivateUse1)(_while_loop_autograd)


def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    """``torch.cond`` on rsx tensors."""
    on_device = isinstance(pred, torch.Tensor) and pred.device.type == "rsx"
    if not (on_device and _C.is_recording() and _is_pure(true_fn) and _is_pure(false_fn)):
        return true_fn(*operands) if pred else false_fn(*operands)
    yes, spec = _pytree.tree_flatten(true_fn(*operands))
    no, _ = _pytree.tree_flatten(false_fn(*operands))
    pred = pred.reshape(())
    chosen = [torch.where(pred, a, b) if isinstance(a, torch.Tensor) else a for a, b in zip(yes, no, strict=True)]
    return _pytree.tree_unflatten(chosen, spec)


def _is_pure(branch: Any) -> bool:
    """Whether a branch is a graph that writes none of its operands."""
    if not isinstance(branch, torch.fx.GraphModule):
        return False
    for node in branch.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return False
        if node.op == "call_method" and (str(node.target).endswith("_") or node.target == "set_"):
            return False
        if node.op == "call_function" and getattr(node.target, "__name__", "").startswith(("setitem", "i")) and (
            getattr(node.target, "__module__", "") == "_operator"
        ):
            return False
    return True


def while_loop(
    cond_fn: Any, body_fn: Any, carried: tuple, additional: tuple, stack_output: bool = False, mutated_arg_indices: str = ""
) -> tuple:
    """``torch.while_loop`` on rsx tensors."""
    plain = not stack_output and not mutated_arg_indices
    loop = _loop_of(cond_fn, body_fn, carried, additional) if plain else None
    if loop is None:
        from torch._higher_order_ops.while_loop import while_loop_dense

        more = {} if plain else {"stack_output": stack_output, "mutated_arg_indices": mutated_arg_indices}
        return while_loop_dense(cond_fn, body_fn, carried, additional, **more)
    dense = [x.contiguous() for x in (*carried, *additional)]
    return tuple(torch.ops.rsx.while_loop(dense[: len(carried)], dense[len(carried) :], loop))


def _while_loop_autograd(cond_fn: Any, body_fn: Any, carried: tuple, additional: tuple, *rest: Any, **named: Any) -> Any:
    """PyTorch's formula keeps every iteration; without gradients nothing needs to be kept."""
    from torch._higher_order_ops.while_loop import while_loop_autograd, while_loop_op

    operands = (*carried, *additional)
    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in operands):
        return while_loop_autograd(cond_fn, body_fn, carried, additional, *rest, **named)
    with torch._C._AutoDispatchBelowAutograd():
        return while_loop_op(cond_fn, body_fn, carried, additional, *rest, **named)


_LOOPS = "_rsx_loops"
"""Attribute of a body: loops by its condition and the kind of its operands."""


def _loop_of(cond_fn: Any, body_fn: Any, carried: tuple, additional: tuple) -> int | None:
    """The number of the recorded loop; None if it cannot be recorded."""
    operands = (*carried, *additional)
    if not isinstance(body_fn, torch.fx.GraphModule) or not isinstance(cond_fn, torch.fx.GraphModule):
        return None
    if any(type(x) is not torch.Tensor or x.device.type != "rsx" for x in operands) or not carried:
        return None
    kinds = tuple((x.shape, x.dtype) for x in operands)
    known = body_fn.__dict__.setdefault(_LOOPS, {})
    key = (id(cond_fn), kinds)
    if key not in known:
        known[key] = (cond_fn, _record(cond_fn, body_fn, kinds, len(carried)))
    return known[key][1]


def _record(cond_fn: Any, body_fn: Any, kinds: tuple, count: int) -> int | None:
    condition = _part(lambda *a: cond_fn(*a).reshape(()), kinds, [(torch.Size([]), torch.bool)])
    body = _part(body_fn, kinds, list(kinds[:count])) if condition else None
    if not body:
        if condition:
            _C.part_drop(condition)
        return None
    return _C.loop_new(condition, body)


def _part(fn: Any, kinds: tuple, results: list[tuple]) -> int | None:
    """``fn`` as a part of a loop. None if it is no function of its operands with such results."""
    _C.scratch_begin()
    try:
        args = [torch.empty(shape, dtype=dtype, device="rsx") for shape, dtype in kinds]
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

"""``rsx.jit``: a step function recorded once and replayed with no tracing."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from rsx import _C
from rsx._calls import DONE, OTHER, Call, Refused
from rsx._numbers import Tracker, arguments, evaluate, plain
from rsx._surroundings import Surroundings

_PLAIN = (bool, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format, complex)
_CONTAINERS = (tuple, list, dict)
_TRIES = 5
"""Calls that may be recorded in a row for one kind of arguments without becoming a replay."""
_KEPT = 3
"""Recordings of one kind of arguments that later ones are compared with."""
_VARIANTS = 64
"""Kinds of arguments remembered."""


class _Recorded:
    """A recorded call with what it was given and what it returned."""

    def __init__(self, call: Call, numbers: list[float], tracker: Tracker, spec: Any, constants: list[Any]) -> None:
        self.call, self.numbers, self.spec, self.constants = call, numbers, spec, constants
        self.decided = frozenset(tracker.decided)
        self.computed = list(tracker.computed)
        self.previous: _Recorded | None = None


class _Replay:
    """A call that is replayed. ``operands``: (word, is a float, expression); ``fixed``: numbers that must stay."""

    def __init__(self, recorded: _Recorded, operands: list[tuple], moving: set[int]) -> None:
        self.call, self.spec, self.constants = recorded.call, recorded.spec, recorded.constants
        self.operands, self.moving = operands, moving
        self.numbers = list(recorded.numbers)
        self.fixed = [(i, v) for i, v in enumerate(recorded.numbers) if i not in moving]
        # Where the results go: the commonest forms without a walk over the tree.
        leaf = _pytree.tree_structure(0)
        self.single = self.spec == leaf and not self.constants
        self.flat = self.spec.type is tuple and not self.constants and all(c == leaf for c in self.spec.children())

    def accepts(self, numbers: list[float]) -> bool:
        return all(numbers[i] == v for i, v in self.fixed)

    def run(self, tensors: list[torch.Tensor], numbers: list[float]) -> tuple[int, Any]:
        if numbers != self.numbers:
            self.call.set_words([(w, f, float(evaluate(e, numbers))) for w, f, e in self.operands])
            self.numbers = numbers
        status, outs = self.call.replay(self.call.id, tensors)
        if status != DONE:
            return status, None
        if self.single:
            return DONE, outs[0]
        if self.flat:
            return DONE, tuple(outs)
        leaves: list[Any] = list(outs)
        for i, value in self.constants:
            leaves.insert(i, value)
        return DONE, _pytree.tree_unflatten(leaves, self.spec)


class _Variant:
    """One kind of arguments: same structure, same plain values and objects, same modes."""

    def __init__(self, f: Callable, objects: list[Any]) -> None:
        self.objects = objects  # their ids are in the key: they must not be reused
        self.surroundings = Surroundings(f, *objects)
        self.facts = self.surroundings.values()
        self.recorded: list[_Recorded] = []
        self.replays: list[_Replay] = []
        self.tries = self.renewals = 0
        self.off = False

    def renew(self, f: Callable) -> None:
        self.renewals += 1
        self.surroundings = Surroundings(f, *self.objects)
        self.facts = self.surroundings.values()
        self.recorded.clear()
        self.replays.clear()


class JitFunction:
    """A function under :func:`jit`.

    ``reasons``: why calls are recorded every time instead of replayed, in order of appearance; empty if all is well.
    """

    def __init__(self, fn: Callable, strict: bool = False) -> None:
        self.fn = fn
        self.reasons: list[str] = []
        self._strict = strict
        self._variants: dict[Any, _Variant] = {}
        functools.update_wrapper(self, fn, updated=())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"rsx.jit({self.fn!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _C.is_recording() or torch.compiler.is_compiling():
            return self.fn(*args, **kwargs)
        spec: Any = len(args)
        leaves: Any = args
        if kwargs or any(isinstance(a, _CONTAINERS) for a in args):
            leaves, spec = _pytree.tree_flatten((args, kwargs))
        tensors: list[torch.Tensor] = []
        numbers: list[float] = []
        kinds: list[Any] = [spec]
        for x in leaves:
            if isinstance(x, torch.Tensor) and type(x) is torch.Tensor:
                tensors.append(x)
                kinds.append(0)
            elif type(x) is float or type(x) is int:
                numbers.append(x)
                kinds.append(1)
            elif isinstance(x, _PLAIN):
                kinds.append((type(x), x))
            else:
                kinds.append((2, id(x)))
        kinds.append(_modes())
        key = tuple(kinds)
        try:
            variant = self._variants.get(key)
        except TypeError:  # something that cannot be hashed
            self._refuse("an argument cannot be hashed")
            return self.fn(*args, **kwargs)
        if variant is None:
            if len(self._variants) >= _VARIANTS:
                self._refuse(f"it was called with {_VARIANTS} kinds of arguments")
                return self.fn(*args, **kwargs)
            objects = [x for x in leaves if not isinstance(x, (*_PLAIN, int, float)) and type(x) is not torch.Tensor]
            variant = self._variants[key] = _Variant(self.fn, objects)
        if variant.off:
            return self.fn(*args, **kwargs)
        around = variant.surroundings
        if around.values() != variant.facts:
            changed = around.changed(variant.facts) or "something it reads"
            variant.renew(self.fn)
            around = variant.surroundings
            if variant.renewals > _TRIES:
                self._give_up(variant, f"{changed} changes with every call: make it an argument")
                return self.fn(*args, **kwargs)
        numbers += around.numbers()
        for replay in variant.replays:
            if replay.accepts(numbers):
                status, out = replay.run(tensors, numbers)
                if status == DONE:
                    variant.tries = variant.renewals = 0
                    return out
                if status != OTHER:
                    variant.renew(self.fn)
                    break
        return self._record(variant, args, kwargs, leaves, tensors, numbers)

    def _refuse(self, reason: str) -> None:
        """Notes a reason; the first is a warning."""
        if reason in self.reasons:
            return
        self.reasons.append(reason)
        name = getattr(self.fn, "__qualname__", repr(self.fn))
        text = f"rsx.jit: {name} is recorded on every call instead of replayed: {reason}"
        if self._strict:
            raise RuntimeError(text)
        if len(self.reasons) == 1:
            warnings.warn(text + ". (Results are the same; `reasons` of the function lists all reasons.)", stacklevel=4)

    def _give_up(self, variant: _Variant, reason: str) -> None:
        variant.off = True
        variant.recorded.clear()
        self._refuse(reason)

    def _record(
        self,
        variant: _Variant,
        args: tuple,
        kwargs: dict[str, Any],
        leaves: Any,
        tensors: list[torch.Tensor],
        numbers: list[float],
    ) -> Any:
        around = variant.surroundings
        refusal = _unfit(tensors)
        if refusal:
            self._give_up(variant, refusal)
            return self.fn(*args, **kwargs)
        tracker = Tracker(numbers)
        call_args, call_kwargs = _substitute(args, kwargs, leaves, tracker)
        call = Call(around.leaves)
        with _rates(around, tracker) as rates, _Backward() as backward:

            def results() -> tuple:
                flat, spec = _pytree.tree_flatten(self.fn(*call_args, **call_kwargs))
                if backward.ran:
                    # The graph is used up. Replays have none, so no call gives one. It goes before the recording ends:
                    # what it still holds (attributes of `ctx`) is not something that the call leaves behind.
                    flat = [x.detach() if isinstance(x, torch.Tensor) and x.grad_fn is not None else x for x in flat]
                return flat, spec

            flat, spec = call.run(results)
        tracker.open = False
        flat = [plain(x) for x in flat]
        out = _pytree.tree_unflatten(flat, spec)
        outs = [x for x in flat if isinstance(x, torch.Tensor)]
        constants = [(i, x) for i, x in enumerate(flat) if not isinstance(x, torch.Tensor)]
        try:
            if any(x.grad_fn is not None for x in outs):
                raise Refused(
                    "its results need gradients outside of it: call backward inside, or use "
                    'torch.compile(backend="rsx")'
                )
            if rates.changed:
                raise Refused("it changes a learning rate, which a replay would not: step schedulers outside")
            changed = around.changed(variant.facts)
            if changed:
                # The first call may set things up (`if self.cache is None`).
                variant.facts = around.values()
                raise Refused(f"it changes {changed}, which a replay would not")
            call.bind(tensors, outs)
        except Refused as e:
            fatal = bool(call.reasons) or variant.tries >= 1
            variant.tries += 1
            if fatal:
                self._give_up(variant, str(e))
            return out
        self._settle(variant, _Recorded(call, numbers, tracker, spec, constants))
        return out

    def _settle(self, variant: _Variant, new: _Recorded) -> None:
        """Compares a recording with the earlier ones; makes a replay if one of them agrees."""
        reason = "its ops differ from call to call"
        for old in reversed(variant.recorded):
            differences = new.call.differences(old.call)
            if differences is None or old.spec != new.spec:
                continue
            try:
                variant.replays.insert(0, _compare(old, new, differences))
                del variant.replays[8:]
                reason = ""
                break
            except Refused as e:
                reason = str(e)
                break
        if variant.recorded or not reason:
            variant.tries += 1
        variant.recorded = [*variant.recorded[1 - _KEPT :], new]
        if variant.tries > _TRIES:
            self._give_up(variant, reason or "a number or an object that it depends on changes with every call")


def _compare(old: _Recorded, new: _Recorded, differences: list[tuple]) -> _Replay:
    """The replay that two recordings of equal structure make. Raises Refused."""
    if old.constants != new.constants:
        raise Refused("it returns Python values that differ from call to call")
    operands, moving = [], set()
    for word, is_float, settable, before, after, op, where in differences:
        expression = next(
            (
                e
                for e, value in new.computed
                if settable and value == after and evaluate(e, old.numbers) == before and arguments(e)
            ),
            None,
        )
        if expression is None:
            raise Refused(
                f"{op} at {where} takes a number that changes from call to call ({before:g}, then {after:g}) and is "
                "not computed from number arguments or learning rates: make it an argument or a tensor "
                "(for torch.optim: capturable=True)"
            )
        operands.append((word, is_float, expression))
        moving |= arguments(expression)
    # A number that moves must be known in all operands: those it did not reach now are constant in it.
    moving -= new.decided | old.decided
    operands = [o for o in operands if arguments(o[2]) & moving]
    new.call.make_replay(old.call)
    return _Replay(new, operands, moving)


def _modes() -> tuple:
    """Global state that decides what ops do."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("rsx") and torch.get_autocast_dtype("rsx"),
        torch.get_default_dtype(),
    )


def _unfit(tensors: list[torch.Tensor]) -> str | None:
    for t in tensors:
        if t.device.type != "rsx":
            return f"an argument is on device {t.device}: move it to rsx before the call"
        if t.requires_grad:
            return "an argument requires a gradient: detach it, or use torch.compile(backend='rsx')"
    return None


def _substitute(args: tuple, kwargs: dict, leaves: Any, tracker: Tracker) -> tuple[tuple, dict]:
    """The arguments with tracked numbers in place of plain ones."""
    if not any(type(x) in (int, float) for x in leaves):
        return args, kwargs
    numbers = iter(tracker.tracked)
    swapped = [next(numbers) if type(x) in (int, float) else x for x in leaves]
    if leaves is args:
        return tuple(swapped), kwargs
    _, spec = _pytree.tree_flatten((args, kwargs))
    return _pytree.tree_unflatten(swapped, spec)


class _rates:
    """Learning rates are tracked numbers inside the block."""

    def __init__(self, around: Surroundings, tracker: Tracker) -> None:
        self.pairs = list(zip(around.rates, tracker.tracked[len(tracker.tracked) - len(around.rates) :]))
        self.changed = False

    def __enter__(self) -> _rates:
        for (group, key), number in self.pairs:
            group[key] = number
        return self

    def __exit__(self, *exc: object) -> None:
        for (group, key), number in self.pairs:
            if group[key] is number:
                group[key] = plain(number)
            elif not exc[0]:
                group[key] = plain(group[key])
                self.changed = True


class _Backward:
    """Whether autograd has run inside the block."""

    def __enter__(self) -> _Backward:
        self.ran = False
        self.original = original = torch.autograd._engine_run_backward

        def run(*args, **kwargs):
            self.ran = True
            return original(*args, **kwargs)

        torch.autograd._engine_run_backward = run
        return self

    def __exit__(self, *exc: object) -> None:
        torch.autograd._engine_run_backward = self.original


def jit(fn: Callable | None = None, *, strict: bool = False) -> Any:
    """Record calls of ``fn`` until two in a row agree, then replay them: no Python, no dispatcher, no tracing.

    For step functions on device ``rsx``: forward, ``backward()``, ``optimizer.step()`` and ``zero_grad()`` inside.
    Replays depend on tensor arguments (any values; sizes, strides and types as recorded, each combination is recorded
    anew), on the tensors that ``fn`` reaches otherwise (parameters, buffers, optimizer state: always their present
    contents, and in-place updates happen), and on the random generator, which advances as it would. Gradients that the
    call sets are set; results are fresh tensors without autograd graph.

    Number arguments and learning rates are run-time operands, through any arithmetic. Other Python state is constant:
    replays are given up where a plain attribute, closure variable or hyper-parameter that ``fn`` can reach has changed,
    and calls are recorded again. Ordinary Python side effects (printing, counting) do not happen in replays.

    Where replaying cannot be right, every call is recorded as if ``fn`` were called itself, with one warning: a value
    read on the host (``item``, ``print``), host data that changes, an optimizer that computes with its step count on the
    host (pass ``capturable=True``), results that need gradients outside. ``reasons`` lists why.

    ``strict``: raise RuntimeError instead. May be used as a decorator, with or without parentheses, also on methods.
    """
    if fn is None:
        return functools.partial(jit, strict=strict)
    return JitFunction(fn, strict)

"""Numbers that remember how they were computed, for :func:`rsx.jit`.

While a call is recorded, number arguments and learning rates are replaced by these. They are floats and ints as far as
PyTorch can see; arithmetic on them notes an expression, and asking for their truth or order notes that the number
decided what was recorded. Two recordings with different values then show which operands of which ops come from which
expression, and a replay evaluates those.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

Number = int | float
# ("arg", index) | ("const", value) | (function, expression, ...)
Expression = tuple[Any, ...]


class Tracker:
    """What was done with the numbers of one call."""

    def __init__(self, numbers: Sequence[Number]) -> None:
        self.open = True
        self.decided: set[int] = set()
        self.computed: list[tuple[Expression, Number]] = []
        self.tracked = [self.make(v, ("arg", i)) for i, v in enumerate(numbers)]

    def make(self, value: Any, expression: Expression) -> Any:
        """``value`` with its expression."""
        if type(value) not in _TRACKED:
            return value
        self.computed.append((expression, value))
        tracked = _TRACKED[type(value)](value)
        tracked.tracker, tracked.expression = self, expression
        return tracked

    def decide(self, expression: Expression) -> None:
        """The arguments in ``expression`` decided what was recorded."""
        if expression[0] == "arg":
            self.decided.add(expression[1])
        elif expression[0] != "const":
            for part in expression[1:]:
                self.decide(part)


def evaluate(expression: Expression, numbers: Sequence[Number]) -> Number:
    """Value of ``expression`` for other arguments."""
    if expression[0] == "arg":
        return numbers[expression[1]]
    if expression[0] == "const":
        return expression[1]
    return expression[0](*(evaluate(e, numbers) for e in expression[1:]))


def arguments(expression: Expression) -> set[int]:
    """Arguments that ``expression`` depends on."""
    if expression[0] == "arg":
        return {expression[1]}
    if expression[0] == "const":
        return set()
    return set().union(*(arguments(e) for e in expression[1:]))


def plain(value: Any) -> Any:
    """``value`` without its history."""
    for base, tracked in _TRACKED.items():
        if type(value) is tracked:
            return base(base.__add__(value, base(0)))
    return value


def _expression(value: Any) -> Expression:
    return value.expression if type(value) in _CLASSES else ("const", value)


def _arithmetic(base: type, name: str, function: Callable) -> Callable:
    original = getattr(base, name)

    def method(self, *others):
        value = original(self, *others)
        if value is NotImplemented or not self.tracker.open:
            return value
        parts = [_expression(v) for v in (self, *others)]
        if name.startswith("__r") and name not in ("__round__", "__rshift__"):
            parts.reverse()
        return self.tracker.make(value, (function, *parts))

    return method


def _deciding(base: type, name: str) -> Callable:
    original = getattr(base, name)

    def method(self, *others):
        if self.tracker.open:
            for value in (self, *others):
                if type(value) in _CLASSES:
                    self.tracker.decide(value.expression)
        return original(self, *others)

    return method


_BINARY = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
}
_UNARY = {"__neg__": operator.neg, "__pos__": operator.pos, "__abs__": operator.abs}
_DECIDING = (
    "__bool__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __int__ __float__ __index__ __round__ __trunc__ __floor__ "
    "__ceil__ __str__ __repr__ __format__"
).split()


def _tracked(base: type) -> type:
    body: dict[str, Any] = {"__doc__": f"A {base.__name__} with a history."}
    for name, function in _BINARY.items():
        for method in (f"__{name}__", f"__r{name}__"):
            body[method] = _arithmetic(base, method, function)
    for name, function in _UNARY.items():
        body[name] = _arithmetic(base, name, function)
    for name in _DECIDING:
        if hasattr(base, name):
            body[name] = _deciding(base, name)
    return type(f"Tracked{base.__name__.capitalize()}", (base,), body)


_TRACKED = {base: _tracked(base) for base in (float, int)}
_CLASSES = frozenset(_TRACKED.values())

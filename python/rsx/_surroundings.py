"""What a function can reach besides its arguments: modules, optimizers, numbers. For :func:`rsx.jit`."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

_DEPTH = 4
_WIDTH = 1000  # elements of a container looked at
_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_MISSING = object()


class Surroundings:
    """Leaves, numbers and switches that a function reads without being given them.

    ``leaves``: tensors that may be given gradients. ``rates``: (parameter group, "lr") whose value is a float.
    ``facts``: places of other plain values; a replay is good only while they are what they were.
    """

    def __init__(self, *roots: Any) -> None:
        self.leaves: list[torch.Tensor] = []
        self.rates: list[tuple[dict, str]] = []
        self.facts: list[tuple[Any, Any]] = []
        self.names: list[str] = []
        self.cells: list[tuple[types.CellType, str]] = []
        self._seen: dict[int, Any] = {}
        for root in roots:
            self._walk(root, _DEPTH)
        del self._seen

    def values(self) -> list[Any]:
        """Present values of all facts."""
        found = [d[k] if k in d else _MISSING for d, k in self.facts]
        for cell, _ in self.cells:
            value = cell.cell_contents if cell is not None else None
            found.append(value if isinstance(value, _SCALARS) else id(value))
        return found

    def numbers(self) -> list[float]:
        """Present learning rates."""
        return [group[key] for group, key in self.rates]

    def changed(self, before: list[Any]) -> str | None:
        """Name of a fact whose value is no longer the one in ``before``."""
        for name, was, now in zip(self.names + [n for _, n in self.cells], before, self.values()):
            if was is not now and was != now:
                return name
        return None

    def _fact(self, holder: Any, key: Any, name: str) -> None:
        self.facts.append((holder, key))
        self.names.append(name)

    def _walk(self, x: Any, depth: int) -> None:
        if isinstance(x, _SCALARS) or depth == 0 or id(x) in self._seen:
            return
        self._seen[id(x)] = x
        if isinstance(x, torch.Tensor):
            if x.is_leaf and x.requires_grad and x.device.type == "rsx":
                self.leaves.append(x)
        elif isinstance(x, torch.nn.Module):
            self._module(x, depth)
        elif isinstance(x, torch.optim.Optimizer):
            self._optimizer(x)
        elif isinstance(x, functools.partial):
            for part in (x.func, *x.args, *x.keywords.values()):
                self._walk(part, depth)
        elif isinstance(x, types.MethodType):
            self._walk(x.__self__, depth)
            self._walk(x.__func__, depth)
        elif isinstance(x, types.FunctionType):
            self._function(x, depth)
        elif isinstance(x, dict):
            for k, v in list(x.items())[:_WIDTH]:
                if isinstance(v, _SCALARS):
                    self._fact(x, k, f"[{k!r}]")
                self._walk(v, depth - 1)
        elif isinstance(x, (list, tuple, set, frozenset)):
            for v in list(x)[:_WIDTH]:
                self._walk(v, depth - 1)
        elif not isinstance(x, (type, types.ModuleType, types.BuiltinFunctionType)):
            self._object(x, depth)

    def _module(self, module: torch.nn.Module, depth: int) -> None:
        for name, m in module.named_modules():
            self._seen[id(m)] = m
            self._object(m, 1, f"{name}." if name else "")
            for v in vars(m).values():
                if isinstance(v, (torch.nn.Module, torch.optim.Optimizer)) or not isinstance(v, dict):
                    self._walk(v, depth - 1)
        for p in module.parameters():
            self._walk(p, depth)

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for key, value in group.items():
                if key == "params":
                    for p in value:
                        self._walk(p, _DEPTH)
                elif key == "lr" and type(value) is float:
                    self.rates.append((group, key))
                elif isinstance(value, _SCALARS) or (type(value) is tuple and all(isinstance(v, _SCALARS) for v in value)):
                    self._fact(group, key, f"{type(optimizer).__name__}.param_groups[..][{key!r}]")

    def _function(self, f: types.FunctionType, depth: int) -> None:
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            try:
                contents = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            self.cells.append((cell, name))
            self._walk(contents, depth - 1)
        for default in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
            self._walk(default, depth - 1)
        for name in _names(f.__code__):
            value = f.__globals__.get(name, _MISSING)
            if isinstance(value, _SCALARS):
                self._fact(f.__globals__, name, name)
            elif value is not _MISSING and not _is_library(value):
                self._walk(value, depth - 1)

    def _object(self, x: Any, depth: int, prefix: str | None = None) -> None:
        attributes = getattr(x, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        prefix = f"{type(x).__name__}." if prefix is None else prefix
        for k, v in list(attributes.items())[:_WIDTH]:
            if isinstance(v, _SCALARS):
                self._fact(attributes, k, prefix + str(k))
            elif depth > 1:
                self._walk(v, depth - 1)


def _is_library(value: Any) -> bool:
    """Functions of PyTorch and Python read nothing of the user's."""
    module = getattr(value, "__module__", None) or ""
    return isinstance(value, (types.FunctionType, types.MethodType)) and module.split(".")[0] in ("torch", "rsx", "math")


def _names(code: types.CodeType) -> list[str]:
    """Names of globals that a function and the functions in it may read."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _names(constant)
    return list(dict.fromkeys(names))

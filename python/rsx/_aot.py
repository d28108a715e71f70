"""``rsx.compile``: a function compiled ahead of time for the arguments of an example; ``rsx.load``: from a file."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from rsx import _C
from rsx._calls import DONE, Call, Refused
from rsx._control import tier

_VERSION = 1


class Program:
    """A compiled call. Call it with arguments like the example's: tensors of the same sizes, strides and types, and
    equal other values; anything else raises TypeError. Made by :func:`compile` and :func:`load`."""

    def __init__(self, call: Call, inputs: Any, kinds: list[str], values: list[Any], outputs: Any, constants: list) -> None:
        self._call, self._inputs, self._kinds, self._values = call, inputs, kinds, values
        self._outputs, self._constants = outputs, constants

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        values = [x for x in leaves if not isinstance(x, torch.Tensor)]
        if spec != self._inputs or values != self._values:
            raise TypeError(f"this program takes {self.signature()}; got {_describe(leaves)}")
        status, outs = self._call.replay(self._call.id, tensors)
        if status != DONE:
            raise TypeError(
                f"this program takes {self.signature()} (or a tensor it reads is gone, or arguments share memory that did "
                f"not in the example); got {_describe(leaves)}"
            )
        for i, value in self._constants:
            outs.insert(i, value)
        return _pytree.tree_unflatten(outs, self._outputs)

    def signature(self) -> str:
        """What it takes, for messages."""
        return ", ".join(self._kinds) or "nothing"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program with the tensors it reads (weights: as they are now) to a file for :func:`load`.

        The file is a zip archive: the recorded ops, the arguments' and results' layouts, the tensors' bytes. Raises
        ValueError for a program that writes tensors which are no arguments, or sets gradients.
        """
        recording = self._call.recording
        tensors = _C.recording_captured(recording)
        spec = torch.ops.rsx.call_spec(self._call.id)
        head = {
            "version": _VERSION,
            "torch": str(torch.__version__),
            "spec": torch.tensor(spec, dtype=torch.int64),
            "random": [self._call.seed, self._call.offset, self._call.advance],
            "inputs": _pytree.treespec_dumps(self._inputs),
            "outputs": _pytree.treespec_dumps(self._outputs),
            "kinds": self._kinds,
            "values": self._values,
            "constants": self._constants,
            "captured": [i for i, _ in tensors],
        }
        text = io.BytesIO()
        torch.save(head, text)
        with zipfile.ZipFile(path, "w") as z:
            z.writestr("head.pt", text.getvalue())
            z.writestr("ops", _C.recording_export(recording))
            for i, contents in tensors:
                z.writestr(f"tensor/{i}", contents)


def _describe(leaves: list[Any]) -> str:
    return ", ".join(_kind(x) for x in leaves) or "nothing"


def _kind(x: Any) -> str:
    if not isinstance(x, torch.Tensor):
        return repr(x)
    strides = "" if x.is_contiguous() else f" with strides {tuple(x.stride())}"
    return f"{str(x.dtype)[6:]}{list(x.shape)}{strides} on {x.device.type}"


def compile(fn: Callable, *example_inputs: Any, **example_kwargs: Any) -> Program:  # noqa: A001 - the name says it
    """Compile ``fn`` for arguments like these, before it is needed: runs it once on them and returns a :class:`Program`.

    Tensors are arguments; everything else (numbers, flags) is constant. Tensors that ``fn`` reaches otherwise (weights)
    are read as they are at each call. No gradients flow through a program. Random numbers advance as in ``fn``.
    Raises RuntimeError with the reason if ``fn`` cannot be one program (it reads values on the host, say).
    """
    leaves, inputs = _pytree.tree_flatten((example_inputs, example_kwargs))
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    for t in tensors:
        if t.device.type != "rsx":
            raise RuntimeError(f"rsx.compile: an example tensor is on device {t.device}: move it to rsx")
    call = Call()
    with tier("compiled"), torch.no_grad():
        # What the first call sets up is not part of the program.
        call.run(lambda: fn(*example_inputs, **example_kwargs))
        call = Call()
        out = call.run(lambda: fn(*example_inputs, **example_kwargs))
        flat, outputs = _pytree.tree_flatten(out)
        outs = [x for x in flat if isinstance(x, torch.Tensor)]
        try:
            call.bind([t.detach() for t in tensors], outs)
            call.make_replay()
        except Refused as e:
            name = getattr(fn, "__qualname__", repr(fn))
            raise RuntimeError(f"rsx.compile: {name} cannot be compiled ahead of time: {e}") from None
    constants = [(i, x) for i, x in enumerate(flat) if not isinstance(x, torch.Tensor)]
    values = [x for x in leaves if not isinstance(x, torch.Tensor)]
    return Program(call, inputs, [_kind(x) for x in leaves], values, outputs, constants)


def load(path: str | os.PathLike[str]) -> Program:
    """Read a program written by :meth:`Program.save`. Its weights are its own. Load only files you trust.

    Raises ValueError if the file is damaged, or not good for this version of PyTorch.
    """
    try:
        with zipfile.ZipFile(path) as z:
            head = torch.load(io.BytesIO(z.read("head.pt")), weights_only=True)
            if head["version"] != _VERSION:
                raise ValueError(f"{path}: a program of another version of rsx")
            recording = _C.recording_import(z.read("ops"))
            call = Call()
            call.recording = recording
            for i in head["captured"]:
                contents = bytearray(z.read(f"tensor/{i}"))
                host = torch.frombuffer(contents, dtype=torch.uint8) if contents else torch.empty(0, dtype=torch.uint8)
                torch.ops.rsx.recording_hold(recording, i, host.to("rsx"))
    except (zipfile.BadZipFile, KeyError) as e:
        raise ValueError(f"{path}: not a program of rsx, or damaged: {e}") from None
    call.id = torch.ops.rsx.call_restore(recording, head["spec"].tolist())
    call.seed, call.offset, call.advance = head["random"]
    call.make_replay()
    inputs, outputs = _pytree.treespec_loads(head["inputs"]), _pytree.treespec_loads(head["outputs"])
    return Program(call, inputs, head["kinds"], head["values"], outputs, head["constants"])

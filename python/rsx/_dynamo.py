"""``torch.compile(backend="rsx")``: the graphs of Dynamo and AOTAutograd, recorded once per kind of arguments and replayed.

Found through the entry point ``torch_dynamo_backends``.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rsx import _C
from rsx._calls import DONE, Call, Refused

_KINDS = 256
"""Recordings kept per graph; beyond, calls are recorded every time."""


class Graph:
    """A forward, backward or inference graph. Called with a list of arguments, which it empties (boxed)."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._boxed_call = True  # on the instance: wrappers copy what they find there
        self.module = module
        self.calls: dict[tuple, list[tuple[Call, list[tuple[int, Any]]]]] = {}
        self.count = 0
        self.off = ""

    def __call__(self, args: list[Any]) -> list[Any]:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        plain = tuple([a for a in args if not isinstance(a, torch.Tensor)]) if len(tensors) < len(args) else ()
        known = self.calls.get(plain, ())
        for call, constants in known:
            status, outs = call.replay(call.id, tensors)
            if status == DONE:
                args.clear()
                for i, value in constants:
                    outs.insert(i, value)
                return outs
        return self._record(args, tensors, plain)

    def _record(self, args: list[Any], tensors: list[torch.Tensor], plain: tuple) -> list[Any]:
        if not self.off and any(t.device.type != "rsx" for t in tensors):
            self.off = "it takes tensors of another device"
        if self.off or self.count >= _KINDS or _C.is_recording():
            return list(self.module(*args))
        call = Call()
        outs = list(call.run(lambda: self.module(*args)))
        constants = [(i, x) for i, x in enumerate(outs) if not isinstance(x, torch.Tensor)]
        try:
            call.bind(tensors, [x for x in outs if isinstance(x, torch.Tensor)])
            call.make_replay()
        except Refused as e:
            self.off = str(e)
            warnings.warn(f"torch.compile(backend='rsx'): a graph is recorded on every call: {e}", stacklevel=2)
        else:
            self.count += 1
            self.calls.setdefault(plain, []).insert(0, (call, constants))
        args.clear()
        return outs


def _compile(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Graph:
    return Graph(module)


@functools.cache
def _aot() -> Callable:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    return aot_autograd(
        fw_compiler=_compile,
        bw_compiler=_compile,
        inference_compiler=_compile,
        partition_fn=functools.partial(min_cut_rematerialization_partition, compiler="inductor"),
        keep_inference_input_mutations=True,
    )


def backend(module: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable:
    """The backend. Models and tensors live on device ``rsx``; a graph over CPU tensors alone raises RuntimeError."""
    options.pop("mode", None)
    options.pop("options", None)
    if options:
        raise ValueError(f"torch.compile(backend='rsx') knows no options: {sorted(options)}")
    devices = {x.device.type for x in inputs if isinstance(x, torch.Tensor)}
    if devices and "rsx" not in devices:
        raise RuntimeError(
            f"torch.compile(backend='rsx') got tensors on {sorted(devices)} only: move the model and its inputs to device "
            "'rsx' (model.to('rsx')), or use backend='inductor'"
        )
    return _aot()(module, inputs)

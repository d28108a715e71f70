"""The few places where PyTorch's Python names its devices one by one and leaves out renamed ones.

Each patch says what it changes and is a no-op for every other device.
"""

import functools

import torch

from rsx import _C


def apply() -> None:
    """Apply all patches; once."""
    _print_from_host()
    _data_ptr_is_memory()
    _dlpack_device()
    _cut_after_optimizer_step()


def _print_from_host() -> None:
    """``print(tensor)`` slices and reduces on the device (one compile each) except for a list of lazy devices.

    Here: one copy to the host, printed there.
    """
    from torch import _tensor_str

    original = _tensor_str._str_intern

    @functools.wraps(original)
    def str_intern(inp, *, tensor_contents=None):
        plain = type(inp) in (torch.Tensor, torch.nn.Parameter) and inp.device.type == "rsx" and inp.numel() > 0
        if not plain or tensor_contents is not None or torch._C._functorch.is_functorch_wrapped_tensor(inp):
            return original(inp, tensor_contents=tensor_contents)
        with _C.host_cause("print"):
            host = torch.autograd.forward_ad.unpack_dual(inp.detach())[0].to("cpu")
        contents = _tensor_str._tensor_str(host, len("tensor("))
        return original(inp, tensor_contents=contents)

    _tensor_str._str_intern = str_intern


def _data_ptr_is_memory() -> None:
    """Before torch 2.13 nothing tells the device that an address is wanted: addresses are tokens until it is told."""
    if torch.ops.rsx.has_materializer():
        return
    original = torch.Tensor.data_ptr

    @functools.wraps(original)
    def data_ptr(self):
        if type(self) in (torch.Tensor, torch.nn.Parameter) and self.device.type == "rsx" and self.numel() > 0:
            torch.ops.rsx.materialize(self)
        return original(self)

    torch.Tensor.data_ptr = data_ptr


def _dlpack_device() -> None:
    """``Tensor.__dlpack_device__`` compares with the literal ``"privateuse1"``."""
    original = torch.Tensor.__dlpack_device__

    @functools.wraps(original)
    def dlpack_device(self):
        if type(self) is torch.Tensor and self.device.type == "rsx":
            from torch.utils.dlpack import DLDeviceType

            return DLDeviceType.kDLExtDev, self.device.index or 0
        return original(self)

    torch.Tensor.__dlpack_device__ = dlpack_device


def _cut_after_optimizer_step() -> None:
    """A training step ends with its optimizer: the recording is cut there, when the next op comes.

    Loops without ``mark_step`` thus get one segment a step. Gradients freed in between (``zero_grad``) are never stored.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def cut(optimizer, args, kwargs):
        if not torch.compiler.is_compiling():
            _C.cut_before_next()

    register_optimizer_step_post_hook(cut)

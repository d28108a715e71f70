"""``torch.cond`` inside one program where that is possible; which kernels the higher-order ops have on the device.

``torch.cond``: where a call is being recorded both branches are computed and the predicate selects, so that nothing is read
on the host. Elsewhere, and where a branch writes its operands, the predicate is read: right, one host wait.

``scan``: its steps are recorded one by one into the program that it stands in; results are stacked at the end.

``torch.while_loop``: ``_loops.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

from rsx import _C, _loops


def register() -> None:
    """Give the higher-order ops their kernels for the device."""
    from torch._higher_order_ops.cond import cond_op
    from torch._higher_order_ops.scan import scan_op
    from torch._higher_order_ops.while_loop import while_loop_op

    cond_op.py_impl(torch._C.DispatchKey.PrivateUse1)(cond)
    while_loop_op.py_impl(torch._C.DispatchKey.PrivateUse1)(_loops.while_loop)
    scan_op.py_impl(torch._C.DispatchKey.PrivateUse1)(scan)
    while_loop_op.py_impl(torch._C.DispatchKey.AutogradPrivateUse1)(_loops.while_loop_autograd)


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


def scan(combine_fn: Any, init: Any, xs: Any, additional_inputs: Any) -> tuple:
    """``scan`` on rsx tensors. PyTorch's own writes every step's results into the whole of all steps' results."""
    carry: list = list(init)
    steps: list[list] = []
    for i in range(max(xs[0].shape[0], 1)):  # of none, the first is an IndexError as on the CPU
        found = _pytree.tree_leaves(
            combine_fn(*carry, *(x.select(0, i) for x in xs), *additional_inputs), is_leaf=lambda x: x is None
        )
        carry = found[: len(carry)]
        steps.append(found[len(carry) :])
    ys = (torch.stack(y) if isinstance(y[0], torch.Tensor) else None for y in zip(*steps, strict=True))
    return (*carry, *ys)

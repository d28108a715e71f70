"""``torch.cond`` inside one program.

Where a call is being recorded (``rsx.jit``, ``rsx.compile``, ``torch.compile(backend="rsx")``) both branches are computed
and the predicate selects, so that nothing is read on the host. Elsewhere, and where a branch writes its operands, the
predicate is read: right, one host wait, counted as ``item``. ``torch.while_loop`` reads its predicate once per iteration.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

from rsx import _C


def register() -> None:
    """Give ``torch.cond`` its kernel for the device. Imports higher-order ops, so it is called on first use."""
    from torch._higher_order_ops.cond import cond_op

    cond_op.py_impl(torch._C.DispatchKey.PrivateUse1)(cond)


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

"""Shared by the tests of users' complaints (test_complaints_*.py): what users of lazy and compiled PyTorch complain of, one
program each, must run right on rsx.

The letter and number of each test is that of the list the programs were collected in; the link names the report.
"""

import rsx
import torch

D = "rsx"
LATER = "owed by a later issue (several devices)"


def compiles() -> int:
    rsx.synchronize()
    return rsx.metrics()["compiles"]


def same(a: torch.Tensor, b: torch.Tensor, tol: float = 1e-5) -> None:
    """Equal values, element types, sizes and strides."""
    assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride(), (a.dtype, b.dtype, a.stride(), b.stride())
    torch.testing.assert_close(a.cpu(), b.cpu(), rtol=tol, atol=tol, equal_nan=True)


def both(f):
    """f(device) on CPU and rsx from the same seed, compared."""
    torch.manual_seed(0)
    want = f("cpu")
    torch.manual_seed(0)
    got = f(D)
    want, got = (x if isinstance(x, (tuple, list)) else (x,) for x in (want, got))
    for w, g in zip(want, got, strict=True):
        same(g, w)

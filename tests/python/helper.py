"""Shared by the device tests: run a program on both devices and compare everything that PyTorch promises."""

import copy
import os
import subprocess
import sys
import textwrap

import rsx
import torch

D = "rsx"


def same(got: torch.Tensor, want: torch.Tensor, tol: float = 1e-5) -> None:
    """Equal element type, sizes, strides and values. `got` lives on rsx unless it is a host result."""
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    assert got.shape == want.shape, (got.shape, want.shape)
    assert got.stride() == want.stride(), (got.stride(), want.stride())
    torch.testing.assert_close(got.detach().cpu(), want.detach().cpu(), rtol=tol, atol=tol, equal_nan=True)


def flat(x):
    """All tensors of a nested result."""
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, (list, tuple)):
        return [t for e in x for t in flat(e)]
    return [None] if x is None else [torch.as_tensor(x)]


def both(program, tol: float = 1e-5, seed: int = 0) -> None:
    """`program(device)` gives equal tensors on the CPU and on rsx, drawn from the same seed."""
    results = []
    for device in ("cpu", D):
        torch.manual_seed(seed)
        results.append(flat(program(device)))
    want, got = results
    assert len(want) == len(got)
    for w, g in zip(want, got):
        assert (w is None) == (g is None)
        if w is not None:
            same(g, w, tol)


def pair(make):
    """The same module twice on the device."""
    torch.manual_seed(0)
    net = make().to(D)
    return net, copy.deepcopy(net)


def replays() -> int:
    """Calls replayed so far."""
    return rsx.metrics()["replays"]


def message(program) -> tuple[type, str]:
    """Type and text of the error that `program()` raises."""
    try:
        program()
    except Exception as e:  # noqa: BLE001 - the point is which one
        return type(e), str(e).split("\n")[0]
    raise AssertionError("no error")


def python(code: str, *, timeout: float = 120, check: bool = True, **env: str) -> subprocess.CompletedProcess:
    """Runs a program of its own; its output is in the failure message."""
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **env},
        check=False,
    )
    if check:
        assert run.returncode == 0, f"exit {run.returncode}\n{run.stdout}\n{run.stderr}"
    return run


def fallbacks() -> dict[str, int]:
    """Ops run at once on the CPU so far, per op."""
    return dict(rsx.metrics()["fallbacks"])

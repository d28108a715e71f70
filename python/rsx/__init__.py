"""rsx: a lazy, compiled tensor device for PyTorch.

``import torch`` is enough (the device loads itself through the entry point ``torch.backends``)::

    model.to("rsx")

This module holds what is rsx's own: cuts, counters, reports. Everything a PyTorch device offers is in
``torch.rsx``.
"""

from rsx._install import install as _install

_install()

from rsx._control import (  # noqa: E402 - the extension module must be registered first
    explain,
    guard,
    mark_step,
    metrics,
    report,
    reset_metrics,
    synchronize,
    tier,
    wait_for_compiles,
)
from rsx._aot import Program, compile, load  # noqa: E402, A004
from rsx._jit import jit  # noqa: E402
from rsx._profile import profile  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "Program",
    "compile",
    "explain",
    "load",
    "guard",
    "jit",
    "mark_step",
    "metrics",
    "profile",
    "report",
    "reset_metrics",
    "synchronize",
    "tier",
    "wait_for_compiles",
]

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
    mark_step,
    metrics,
    report,
    reset_metrics,
    synchronize,
    tier,
    wait_for_compiles,
)

__version__ = "0.1.0"

__all__ = [
    "explain",
    "mark_step",
    "metrics",
    "report",
    "reset_metrics",
    "synchronize",
    "tier",
    "wait_for_compiles",
]

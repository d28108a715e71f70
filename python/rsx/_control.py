"""Cuts, counters and reports: what a lazy device has that an eager one has not."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from rsx import _C


def mark_step() -> None:
    """Cut the recording here and hand it to the device, without waiting for it.

    Never needed: values that are read and optimizer steps cut by themselves. Loops written for
    ``torch_xla`` keep their calls.
    """
    _C.mark_step()


def synchronize() -> None:
    """Cut the recording and wait until the device has run everything. Raises what a kernel raised."""
    _C.synchronize()


def metrics() -> dict[str, Any]:
    """Counters since the start, or since :func:`reset_metrics`.

    Keys, all counts unless said:

    - recording: ``records`` (ops), ``signatures`` (kinds of ops whose results were predicted), ``segments``, ``replays``
      (calls of ``rsx.jit`` and ``torch.compile`` without recording), ``cuts`` (dict: segments per cause);
    - compiling: ``compiles`` (segments for which code was generated), ``plans`` (segments that run on code known from
      other sizes), ``compile_failures``, ``compiling`` (in the background now), ``compile_seconds`` (float),
      ``cache_hits``, ``cached_segments`` (remembered now), ``disk_hits`` and ``disk_rejects`` (programs from the disk
      cache; entries of it that were of no use), ``check_failures`` (``RSX_CHECK``);
    - running: ``eager_runs`` and ``eager_ops`` (segments and ops run op by op), ``calls`` (dict: ops inside programs that
      ran through PyTorch's CPU kernels, per op), ``fallbacks`` (dict: ops run at once on the CPU), ``loop_iterations`` (of
      ``torch.while_loop`` inside programs), ``kernels``, ``bytes_moved``, ``busy_seconds`` (float), ``launch_failures``,
      ``faults`` (ops that failed);
    - waiting: ``host_waits``, ``wait_seconds`` (float), ``throttles`` (cuts that waited for the device to catch up);
    - memory: ``live_bytes``, ``peak_bytes``, ``reserved_bytes``, ``system_allocations``, ``live_storages``;
      ``packed_bytes`` (copies of weights in the order in which kernels read them, kept while nobody writes the weights;
      beside ``live_bytes``) and ``prepack_hits`` (operands found packed by an earlier run).
    """
    return _C.metrics()


def reset_metrics() -> None:
    """Set all counters of :func:`metrics` to zero; ``peak_bytes`` starts from what is allocated now."""
    _C.reset_metrics()


def report() -> str:
    """Every cut, fallback and host wait so far: cause, count and the user's source line, most frequent first."""
    return _C.report()


def explain() -> str:
    """Every compile so far with its reason: what differs from the closest segment known before.

    For each: number of ops, the first op and the line it was called at, time, and the differences, such as
    ``input 1 (`self` of aten::mul.Tensor at train.py:12 (step)): 17×256 became 25×256``. ``RSX_LOG=compiles`` prints the
    same as it happens.
    """
    return _C.explain()


def wait_for_compiles() -> None:
    """Wait until no compile is running or queued in the background (for benchmarks and tests)."""
    synchronize()
    while metrics()["compiling"]:
        time.sleep(0.005)


@contextlib.contextmanager
def tier(name: str) -> Iterator[None]:
    """Pin how segments run inside the block: ``"eager"`` (op by op), ``"compiled"`` (always compiled, waiting for the
    compiler), or ``"auto"`` (the default: compiled in the background once a segment recurs).

    ``RSX_TIER`` sets the same for the whole process.
    """
    before = _C.set_tier(name)
    try:
        yield
    finally:
        _C.set_tier(before)


@contextlib.contextmanager
def guard(*, no_host_wait: bool = True) -> Iterator[None]:
    """Inside the block, whatever would make the host wait for the device (``item``, ``print``, ``.cpu()``, ``if x:``,
    ``synchronize``, an op that runs on the host) raises RuntimeError at its line, on this thread.

    For finding and keeping out the waits of a training loop.
    """
    before = _C.forbid_host_wait(no_host_wait)
    try:
        yield
    finally:
        _C.forbid_host_wait(before)

"""Memory statistics of ``torch.rsx``. Bytes throughout; ``device`` is accepted and ignored: there is one."""

from typing import Any

from rsx import _C


def memory_stats(device: Any = None) -> dict[str, int]:
    """Statistics under the names that ``torch.cuda.memory_stats`` uses."""
    m = _C.memory()
    stats = {"num_device_alloc": m["system_allocations"], "allocation.all.allocated": m["allocations"]}
    for kind in ("allocated_bytes", "active_bytes", "requested_bytes"):
        stats[f"{kind}.all.current"], stats[f"{kind}.all.peak"] = m["allocated"], m["peak"]
    stats["reserved_bytes.all.current"] = stats["reserved_bytes.all.peak"] = m["reserved"]
    return stats


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors and running programs hold now."""
    return _C.memory()["allocated"]


def max_memory_allocated(device: Any = None) -> int:
    """Most bytes held at once since the start or :func:`reset_peak_memory_stats`."""
    return _C.memory()["peak"]


def memory_reserved(device: Any = None) -> int:
    """Bytes taken from the system: held ones and spare blocks kept for reuse."""
    return _C.memory()["reserved"]


def max_memory_reserved(device: Any = None) -> int:
    """Most bytes taken from the system at once."""
    return _C.memory()["reserved"]  # only `empty_cache` gives anything back


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peaks start from what is held now."""
    _C.reset_peak_memory()


def reset_max_memory_allocated(device: Any = None) -> None:
    """Same as :func:`reset_peak_memory_stats`."""
    _C.reset_peak_memory()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Nothing: no accumulated statistics are kept."""


def empty_cache() -> None:
    """Give spare blocks back to the system."""
    _C.empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device's memory."""
    m = _C.memory()
    return max(m["total"] - m["reserved"], 0), m["total"]


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The statistics as a short text."""
    m = _C.memory()
    rows = [(name, m[name]) for name in ("allocated", "peak", "reserved", "total")]
    return "\n".join(["rsx memory (MiB)"] + [f"  {name:<14}{value / 2**20:>12.2f}" for name, value in rows])

"""The module ``torch.rsx``: what PyTorch and its users ask of every device module."""

import types
from typing import Any

import torch

from rsx import _C
from rsx import _amp as amp  # noqa: F401 - part of the module's interface
from rsx._memory import (  # noqa: F401
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
)
from rsx._random import (  # noqa: F401
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from rsx._streams import (  # noqa: F401
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

Device = torch.device | str | int | None


def _get_device_index(device: Device, optional: bool = False, allow_cpu: bool = False) -> int:
    """Index of ``device``; the current device's when it has none."""
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != "rsx":
            raise ValueError(f"Expected a rsx device, but got: {device}")
        device = device.index
    if device is None:
        return 0
    index = int(device)
    if index not in (0, -1):
        raise RuntimeError(f"rsx: invalid device ordinal {index}: there is {device_count()} rsx device")
    return 0


_utils = types.SimpleNamespace(_get_device_index=_get_device_index)


def is_available() -> bool:
    """Whether the device can be used: always, except in a forked child of a process that used it."""
    return not _C.is_bad_fork()


def device_count() -> int:
    """Number of rsx devices."""
    return 1


def current_device() -> int:
    """Index of the current device."""
    return 0


def set_device(device: Device) -> None:
    """Make ``device`` the current one. Raises RuntimeError for an index that does not exist."""
    _get_device_index(device)


class device:  # noqa: N801 - the name PyTorch uses
    """Context manager that makes a device the current one. Indices below 0 do nothing."""

    def __init__(self, device: Device) -> None:
        self.idx = _get_device_index(device, optional=True)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> bool:
        return False


class device_of(device):  # noqa: N801
    """Context manager that makes a tensor's device the current one."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device if obj.device.type == "rsx" else None)


def synchronize(device: Device = None) -> None:
    """Wait until everything recorded so far has run."""
    _get_device_index(device, optional=True)
    _C.synchronize()


# --- start-up: nothing to do; PyTorch asks before the first use.

# Activation checkpointing saves and restores the random state only of modules that say so.
_initialized = True


def init() -> None:
    """Nothing: the device starts on first use."""


def _lazy_init() -> None:
    if _C.is_bad_fork():
        raise RuntimeError(
            "Cannot re-initialize rsx in forked subprocess. To use rsx with multiprocessing, you must use the 'spawn' "
            "start method"
        )


def is_initialized() -> bool:
    """Whether the device can be used without further set-up."""
    return not _C.is_bad_fork()


def _is_in_bad_fork() -> bool:
    return _C.is_bad_fork()


# --- properties


class DeviceProperties(types.SimpleNamespace):
    """Name, memory, cores and vector features of a device."""


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Properties of ``device``: ``name``, ``total_memory`` (bytes), ``multi_processor_count`` (threads)."""
    _get_device_index(device, optional=True)
    return DeviceProperties(
        name=get_device_name(), total_memory=mem_get_info()[1], multi_processor_count=torch.get_num_threads()
    )


def get_device_name(device: Device = None) -> str:
    """Name of ``device``."""
    _get_device_index(device, optional=True)
    return f"rsx CPU ({torch.backends.cpu.get_cpu_capability()})"


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """Element types that ``device`` supports."""
    _get_device_index(device, optional=True)
    return {"supported_dtypes": set(get_amp_supported_dtype()) | {torch.float32, torch.float64}}


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 tensors work: always."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Element types that ``torch.autocast("rsx")`` may lower to."""
    return [torch.bfloat16, torch.float16]

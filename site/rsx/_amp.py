"""``torch.rsx.amp``: the generic autocast and gradient scaler with their device filled in."""

from typing import Any

import torch


class autocast(torch.amp.autocast_mode.autocast):  # noqa: N801 - PyTorch's name
    """``torch.autocast("rsx", ...)``."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.bfloat16, cache_enabled: bool = True) -> None:
        super().__init__("rsx", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler("rsx", ...)``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("rsx", *args, **kwargs)


def is_autocast_available() -> bool:
    """Whether ``torch.autocast("rsx")`` works."""
    return True

"""Streams and events of ``torch.rsx``: one in-order stream; an event marks a place in it (and cuts the recording)."""

from typing import Any

import torch


class Stream(torch.Stream):
    """The device's stream. Every stream is the same one: work runs in the order in which it was recorded."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> "Stream":
        return super().__new__(cls, device=torch.device("rsx", 0), priority=priority)


class Event(torch.Event):
    """A place in the device's work that can be waited for and timed."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> "Event":
        return super().__new__(
            cls, device=torch.device("rsx", 0), enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
        )


class StreamContext:
    """Context manager that makes a stream current; with one stream it only keeps the interface."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> torch.Stream | None:
        return self.stream

    def __exit__(self, *exc: object) -> bool:
        return False


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager in which ``stream`` is current."""
    return StreamContext(stream)


def current_stream(device: Any = None) -> Stream:
    """The current stream."""
    return Stream()


def default_stream(device: Any = None) -> Stream:
    """The default stream."""
    return Stream()


def set_stream(stream: torch.Stream | None) -> None:
    """Make ``stream`` current."""

"""One call of a function, recorded on the device; two of them make a replay. Shared by ``rsx.jit``, ``rsx.compile`` and
the ``torch.compile`` backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rsx import _C

DONE, OTHER, STALE = 0, 1, 2
"""What a replay says: results are there; the arguments are of another kind; something it relies on is gone."""


class Refused(Exception):
    """Why a call cannot be replayed, in the user's terms."""


class Call:
    """A recorded call. ``outs`` are its tensor results; ``id`` that of the C++ side, ``recording`` that of the trace."""

    def __init__(self, leaves: Sequence[torch.Tensor] = ()) -> None:
        self.recording = self.id = 0
        self.address = 0
        self.reasons: list[str] = []
        self.leaves = list(leaves)

    def run(self, f: Callable[[], Any]) -> Any:
        """Record ``f()``. Raises what it raises."""
        generator = torch.ops.rsx.default_generator()
        self.seed, self.offset = generator.initial_seed(), generator.get_offset()
        torch.ops.rsx.call_begin(self.leaves)
        _C.record_begin()
        try:
            out = f()
        except BaseException:
            recording, _ = _C.record_end()
            _C.recording_drop(recording)
            raise
        self.recording, self.reasons = _C.record_end()
        self.advance = (generator.get_offset() - self.offset) % 2**64
        if generator.initial_seed() != self.seed:
            self.reasons.append("it seeds the random generator")
        return out

    def bind(self, args: list[torch.Tensor], outs: list[torch.Tensor]) -> None:
        """Say what the call was given and what it gave. Raises Refused."""
        if self.reasons:
            raise Refused(self.reasons[0])
        try:
            self.id = torch.ops.rsx.call_end(self.recording, args, outs)
        except ValueError as e:
            raise Refused(str(e).split("\n")[0]) from None

    def differences(self, before: Call) -> list[tuple] | None:
        """Operands that differ from those of another call: see ``_C.recording_compare``. None: another structure."""
        return _C.recording_compare(before.recording, self.recording)

    def make_replay(self, before: Call | None = None) -> None:
        """Make :meth:`replay` work. ``before`` has been compared; None: storages that are no arguments are the same in
        every call. Raises Refused."""
        try:
            self.address = _C.replay_new(
                before.recording if before else 0, self.recording, self.seed, self.offset, self.advance
            )
        except ValueError as e:
            raise Refused(str(e)) from None
        torch.ops.rsx.call_install(self.id, self.address, self.advance)
        self.replay = torch.ops.rsx.call_replay.default

    def is_compiled(self) -> bool:
        """The program is ready."""
        return _C.replay_is_compiled(self.address)

    def set_words(self, words: list[tuple[int, bool, float]]) -> None:
        """Set number operands: (word, is a float, value)."""
        _C.replay_set_words(self.address, words)

    def __del__(self) -> None:
        try:
            if self.id:
                torch.ops.rsx.call_drop(self.id)
            if self.recording:
                _C.recording_drop(self.recording)
        except (AttributeError, TypeError, ImportError):  # the interpreter is going down
            pass

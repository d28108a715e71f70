"""``rsx.profile``: a timeline of recording, cuts, compiles, segments, kernels and waits."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator

from rsx import _C

_LANES = ("host", "compiler", "executor", "device")


@contextlib.contextmanager
def profile(path: str | os.PathLike[str]) -> Iterator[None]:
    """Write what happens inside the block to ``path`` as a Chrome trace (``chrome://tracing``, https://ui.perfetto.dev).

    Four rows: ``host`` (``record``: from the first op to the cut; ``cut: <cause>``; ``replay``; ``wait: <cause>``),
    ``compiler`` (``compile``, with the reason), ``executor`` (``segment``, with tier and number of ops) and ``device``
    (every kernel, library call and op of the eager engine). Times are in microseconds since the block began. The block's
    end waits for the device, so that nothing is missing. Kernels are timed one by one, which costs about 0.1 us each.
    """
    _C.synchronize()
    _C.timeline_start()
    try:
        yield
    finally:
        try:
            _C.synchronize()
        finally:
            events = _C.timeline_stop()
        pathlib.Path(path).write_text(json.dumps(_chrome(events)))


def _chrome(events: list[tuple]) -> dict:
    origin = min((start for _, _, start, _, _ in events), default=0)
    rows: list[dict] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "rsx"}}]
    for n, lane in enumerate(_LANES):
        rows.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": n, "args": {"name": lane}})
        rows.append({"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": n, "args": {"sort_index": n}})
    for lane, name, start, duration, facts in events:
        rows.append(
            {
                "ph": "X",
                "name": name,
                "cat": lane,
                "pid": 0,
                "tid": _LANES.index(lane),
                "ts": (start - origin) / 1e3,
                "dur": duration / 1e3,
                "args": dict(facts),
            }
        )
    return {"traceEvents": rows, "displayTimeUnit": "ms"}

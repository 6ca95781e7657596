"""Tracebacks as users need them: their own lines, and which hook called them; not the machinery in between."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Final

#: Set to 1 to see every frame.
FULL_VARIABLE: Final = "HOOKBUS_FULL_TRACEBACK"


def shortened(trace: TracebackType | None) -> TracebackType | None:
    """``trace`` without frames of hookbus itself, but for the compiled ones, which name hook and plugin.

    If nothing else would be left (the error is hookbus's own), the last frame stays.
    """
    if trace is None or os.environ.get(FULL_VARIABLE) == "1":
        return trace
    frames = []
    here: TracebackType | None = trace
    while here is not None:
        frames.append(here)
        here = here.tb_next
    kept = [frame for frame in frames if _belongs_to_the_user(frame) or frame is frames[-1]]
    result: TracebackType | None = None
    for frame in reversed(kept):
        result = TracebackType(result, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return result


def _belongs_to_the_user(frame: TracebackType) -> bool:
    filename = frame.tb_frame.f_code.co_filename
    if filename.startswith("<hookbus "):
        return filename.count(" ") > 1  # the stub that compiles a hook at its first call has no number
    module = str(frame.tb_frame.f_globals.get("__name__", ""))
    return not (module == "hookbus" or module.startswith("hookbus."))

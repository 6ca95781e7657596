"""Which checkpoints a callback has saved, as loggers that upload them ask."""

from __future__ import annotations

import os
from typing import Any


def scan_checkpoints(
    checkpoint_callback: Any, logged_model_time: dict[str, float]
) -> list[tuple[float, str, Any, str]]:
    """The files that are new, or newer than when they were last logged.

    Args:
        checkpoint_callback: a ModelCheckpoint.
        logged_model_time: by path, the time of the file when it was logged.

    Returns:
        ``(time, path, score, tag)`` for each, oldest first; the tag is ``latest``, ``best`` or ``best_k``.
    """
    found: dict[str, tuple[Any, str]] = {}
    for path, score, tag in (
        ("last_model_path", "current_score", "latest"),
        ("best_model_path", "best_model_score", "best"),
    ):
        if hasattr(checkpoint_callback, path) and hasattr(checkpoint_callback, score):
            found[getattr(checkpoint_callback, path)] = (getattr(checkpoint_callback, score), tag)
    for path, score in getattr(checkpoint_callback, "best_k_models", {}).items():
        found[path] = (score, "best_k")
    timed = [(os.path.getmtime(p), p, score, tag) for p, (score, tag) in found.items() if os.path.isfile(p)]
    new = [entry for entry in timed if logged_model_time.get(entry[1], float("-inf")) < entry[0]]
    return sorted(new, key=lambda entry: entry[0])

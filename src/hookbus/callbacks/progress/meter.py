"""``Meter``: how far one loop is, and how fast."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Meter:
    """How far one loop is.

    Attributes:
        kind: train, sanity, validate, test or predict.
        description: what stands before the bar.
        total: batches to come in all; inf if unknown.
        started: clock reading when it began.
        first: batches that were done already then (a resumed epoch).
        done: batches done.
    """

    kind: str
    description: str
    total: float
    started: float
    first: int = 0
    done: int = 0
    now: float = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the loop began."""
        return max(self.now - self.started, 0.0)

    @property
    def rate(self) -> float | None:
        """Batches per second since the loop began; None before the first one."""
        done = self.done - self.first
        return done / self.elapsed if done > 0 and self.elapsed > 0 else None

    @property
    def remaining(self) -> float | None:
        """Seconds until the loop ends at this rate; None if unknown."""
        if self.rate is None or not math.isfinite(self.total):
            return None
        return max(self.total - self.done, 0.0) / self.rate

    @property
    def count(self) -> str:
        """``done/total``, or ``done`` alone where the total is unknown."""
        return f"{self.done}/{self.total:.0f}" if math.isfinite(self.total) else f"{self.done}"

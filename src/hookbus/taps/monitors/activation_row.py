"""Statistics of what a layer gives, and how those of several calls or processes become one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ActivationRow:
    """Statistics of one tensor that a layer gives, over all its calls in a period. They are of its finite values.

    Attributes:
        name: the layer's dotted name; with the path of the tensor where the layer gives several: ``rnn.0``.
        phase: in which they were measured.
        calls: how often the layer was called.
        count: number of finite values.
        mean: their mean.
        m2: the sum of squares of their distances from it.
        absmax: the greatest of their absolute values.
        zeros: how many are zero.
        nonfinite: number of values beside them that are NaN or infinite.
        histogram: counts of values below the edges, in each bin, and above; None unless asked for.
    """

    name: str
    phase: str = "train"
    calls: int = 0
    count: int = 0
    mean: float = 0.0
    m2: float = 0.0
    absmax: float = 0.0
    zeros: int = 0
    nonfinite: int = 0
    histogram: tuple[int, ...] | None = None

    @property
    def variance(self) -> float:
        """Mean square of the distances from the mean (divided by ``count``); NaN without values."""
        return self.m2 / self.count if self.count else math.nan

    @property
    def std(self) -> float:
        """Root of the variance."""
        return math.sqrt(self.variance)

    @property
    def rms(self) -> float:
        """Root of the mean square; NaN without values."""
        return math.sqrt(self.mean**2 + self.variance)

    @property
    def zero_share(self) -> float:
        """Share of zeros; NaN without values."""
        return self.zeros / self.count if self.count else math.nan

    def merge(self, other: ActivationRow) -> ActivationRow:
        """Statistics of the values of both: of several calls, or of several processes.

        Moments are combined as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
        sample variances" (1982).
        """
        count = self.count + other.count
        delta = other.mean - self.mean
        share = other.count / count if count else 0.0
        histogram = self.histogram
        if histogram is None or other.histogram is None:
            histogram = other.histogram if histogram is None else histogram
        else:
            histogram = tuple(a + b for a, b in zip(histogram, other.histogram, strict=True))
        return replace(
            self,
            calls=self.calls + other.calls,
            count=count,
            mean=self.mean + delta * share if self.count else other.mean,
            m2=self.m2 + other.m2 + delta * delta * self.count * share,
            absmax=max(self.absmax, other.absmax),
            zeros=self.zeros + other.zeros,
            nonfinite=self.nonfinite + other.nonfinite,
            histogram=histogram,
        )

"""The loss over a range of learning rates: what a search found, the rate it suggests, and its plot."""

from __future__ import annotations

import importlib.util
import math
import os
import warnings
from typing import TYPE_CHECKING, Any, Final

import torch

from hookbus.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMOOTHING: Final = 0.98


class LearningRateCurve:
    """The loss at each rate of a range, as Leslie Smith's range test measures it (https://arxiv.org/abs/1506.01186).

    Args:
        mode: how the rate grows with each step: ``"exponential"`` or ``"linear"``.
        lr_min: the first rate.
        lr_max: the last rate.
        num_training: the number of steps.

    Attributes:
        results: under ``"lr"`` the rates, under ``"loss"`` the losses: running means, as of Lightning 2.6.

    Example:
        >>> curve = LearningRateCurve("exponential", lr_min=1e-4, lr_max=1.0, num_training=4)
        >>> [round(curve.rate(step), 6) for step in range(4)]
        [0.0001, 0.01, 0.1, 1.0]
    """

    def __init__(self, mode: str, lr_min: float, lr_max: float, num_training: int) -> None:
        self.mode = mode
        self.lr_min = lr_min
        self.lr_max = lr_max
        self.num_training = num_training
        self.results: dict[str, list[float]] = {"lr": [], "loss": []}
        self._optimal_idx: int | None = None
        self._mean = self._best = 0.0

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0; the second step is already two steps from the first, as in
        Lightning."""
        if step == 0:
            return self.lr_min
        share = (step + 1) / self.num_training
        if self.mode == "linear":
            return self.lr_min + share * (self.lr_max - self.lr_min)
        return float(self.lr_min * (self.lr_max / self.lr_min) ** share)

    def add(self, loss: float) -> None:
        """The loss of the next step, at its rate; NaN for none."""
        steps = len(self.results["loss"]) + 1
        self.results["lr"].append(self.rate(steps - 1))
        if not math.isnan(loss):
            self._mean = _SMOOTHING * self._mean + (1 - _SMOOTHING) * loss
            loss = self._mean / (1 - _SMOOTHING ** (steps + 1))
            if steps == 1 or loss < self._best:
                self._best = loss
        self.results["loss"].append(loss)

    def diverges(self, threshold: float | None) -> bool:
        """Whether the last loss is more than ``threshold`` times the least one."""
        losses = self.results["loss"]
        return threshold is not None and len(losses) > 1 and losses[-1] > threshold * self._best

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """The rate at which the loss falls most steeply.

        Args:
            skip_begin: this many rates at the beginning do not count: the running mean has to settle.
            skip_end: nor do this many at the end, where the loss may explode.

        Returns:
            The rate; None, with a warning, if fewer than two points are left.
        """
        self._optimal_idx = None
        losses, rates = self.results["loss"], self.results["lr"]
        last = len(losses) - skip_end
        points = [i for i in range(skip_begin, last) if math.isfinite(losses[i])]
        if len(points) < 2:
            warnings.warn(
                f"no learning rate can be suggested: of {len(losses)} step(s), {len(points)} finite loss(es) are left "
                f"between the first {skip_begin} and the last {skip_end}; take more steps, or check the loss",
                UserWarning,
                stacklevel=2,
            )
            return None
        spacing = (torch.tensor([rates[i] for i in points]),)
        slopes = torch.gradient(torch.tensor([losses[i] for i in points]), spacing=spacing)[0]
        self._optimal_idx = points[int(slopes.argmin())]
        return rates[self._optimal_idx]

    def plot(self, suggest: bool = False, show: bool = False, ax: Axes | None = None) -> Any:
        """Draw the loss over the rate.

        Args:
            suggest: mark the suggested rate.
            show: open a window.
            ax: axes to draw into; by default those of a new figure, which no window manager keeps alive.

        Returns:
            The matplotlib figure.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        require_matplotlib("LearningRateCurve.plot")
        if ax is None and show:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        elif ax is None:
            from matplotlib.figure import Figure

            ax = Figure(layout="constrained").subplots()
        ax.plot(self.results["lr"], self.results["loss"])
        if self.mode == "exponential":
            ax.set_xscale("log")
        ax.set_xlabel("Learning rate")
        ax.set_ylabel("Loss")
        if suggest and self.suggestion() is not None:
            at = self._optimal_idx
            assert at is not None
            rate, loss = self.results["lr"][at], self.results["loss"][at]
            ax.plot(rate, loss, marker="o", markersize=10, color="red", label=f"suggestion: {rate:.3g}")
            ax.legend()
        if show:
            import matplotlib.pyplot as plt

            plt.show()
        return ax.figure

    def save_plot(self, path: str | os.PathLike[str]) -> None:
        """Write the plot, with the suggestion, as a PNG file; folders are made as needed.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        path = os.path.abspath(os.fspath(path))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # whoever searched was told already if nothing is suggested
            figure = self.plot(suggest=True)
        figure.savefig(path, format="png")


def has_matplotlib() -> bool:
    """Whether plots can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def require_matplotlib(who: str) -> None:
    """Say what to install.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    if not has_matplotlib():
        raise MissingExtraError(f"{who} draws with matplotlib, which is not installed: pip install 'hookbus[plots]'")

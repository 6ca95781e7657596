"""``SpikeDetection``: ends the training when the loss leaps, and writes down which batches to leave out next time."""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from hookbus.callback import NumberedCallback
from hookbus.errors import MisconfigurationException

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl


class TrainingSpikeException(RuntimeError):
    """The loss has leapt.

    Args:
        batch_idx: the index in its epoch of the batch at which it has.
    """

    def __init__(self, batch_idx: int, *args: Any) -> None:
        super().__init__(f"the loss leapt at batch {batch_idx}", *args)
        self.batch_idx = batch_idx


class SpikeDetection(NumberedCallback):
    """Compares the loss of each batch with the mean of those before, and raises if it is far off in the wrong direction.

    The batch at hand and the one before it go into a JSON file, a list of indices within the epoch: either the batch is
    bad, or the step before has spoilt the weights. A loss that is no worse than the last one is never a spike; another
    one is if it is as far off as both ``atol`` and ``rtol`` say.

    Args:
        mode: whether a good loss is a small (``"min"``) or a great one (``"max"``).
        window: over how many batches the mean is taken.
        warmup: at how many batches at the start of each epoch nothing is judged.
        atol: how far from the mean a spike is at least; None for no such bound.
        rtol: how far it is at least, as a multiple of the mean; None for no such bound.
        exclude_batches_path: the file; or a folder, in which it is ``skip_batches.json``. By default the Trainer's
            ``default_root_dir``.
        finite_only: NaN and infinity are spikes by themselves. With False they are left out of the mean, and NaN is let
            through.

    Attributes:
        bad_batches: the indices that were written.
        last_val: the last loss that was not a spike.

    Raises:
        MisconfigurationException: an argument is out of range.
        TrainingSpikeException: during fit, at a spike; on all processes, if one of them sees it.

    Example:
        >>> from hookbus.callbacks import SpikeDetection
        >>> detection = SpikeDetection(window=20, warmup=100, rtol=3.0)
    """

    role: ClassVar[str] = "mutator"

    def __init__(
        self,
        mode: Literal["min", "max"] = "min",
        window: int = 10,
        warmup: int = 1,
        atol: float | None = None,
        rtol: float | None = 2.0,
        exclude_batches_path: str | os.PathLike[str] | None = None,
        finite_only: bool = True,
    ) -> None:
        super().__init__()
        _check(mode, window, warmup, atol, rtol)
        self.mode = mode
        self.warmup = warmup
        self.atol = atol
        self.rtol = rtol
        self.exclude_batches_path = exclude_batches_path
        self.finite_only = finite_only
        self.bad_batches: list[int] = []
        self.last_val = 0.0
        self._recent: deque[float] = deque(maxlen=window)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Judge the loss of the batch; one that gave none is passed over."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        value = float(loss) if isinstance(loss, Tensor) else None
        spike = value is not None and batch_idx >= self.warmup and self._is_spike(value)
        if trainer.strategy.reduce_boolean_decision(spike, all=False):
            self._write(trainer, batch_idx)
            raise TrainingSpikeException(batch_idx)
        if value is not None and math.isfinite(value):
            self._recent.append(value)
            self.last_val = value

    def _is_spike(self, loss: float) -> bool:
        if self.finite_only and not math.isfinite(loss):
            return True
        no_worse = loss <= self.last_val if self.mode == "min" else loss >= self.last_val
        if no_worse or math.isnan(loss) or not self._recent:
            return False
        mean = sum(self._recent) / len(self._recent)
        distance = abs(loss - mean)
        return (self.atol is None or distance >= abs(self.atol)) and (
            self.rtol is None or distance >= abs(self.rtol * mean)
        )

    def _write(self, trainer: pl.Trainer, batch_idx: int) -> None:
        self.bad_batches += [index for index in (batch_idx - 1, batch_idx) if index >= 0]
        if not trainer.is_global_zero:
            return
        path = os.fspath(trainer.default_root_dir if self.exclude_batches_path is None else self.exclude_batches_path)
        if not path.endswith(".json"):
            path = os.path.join(path, "skip_batches.json")
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.bad_batches, file, indent=4)

    def state_dict(self) -> dict[str, Any]:
        """The losses that the mean is made of, and the batches that were found."""
        return {"last_val": self.last_val, "bad_batches": list(self.bad_batches), "recent": list(self._recent)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with them."""
        self.last_val = float(state_dict["last_val"])
        self.bad_batches = list(state_dict["bad_batches"])
        self._recent.clear()
        self._recent.extend(state_dict.get("recent", ()))


def _check(mode: Any, window: Any, warmup: Any, atol: Any, rtol: Any) -> None:
    """Refuse what cannot work.

    Raises:
        MisconfigurationException: says what, and what is possible.
    """
    if mode not in ("min", "max"):
        raise MisconfigurationException(f"mode must be 'min' or 'max', got {mode!r}")
    for name, number, least in (("window", window, 1), ("warmup", warmup, 0)):
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise MisconfigurationException(f"{name} must be a whole number of {least} or more, got {number!r}")
    if atol is None and rtol is None:
        raise MisconfigurationException(
            "atol and rtol are both None, so every loss that rises would be a spike; give one"
        )
    for name, bound in (("atol", atol), ("rtol", rtol)):
        if bound is not None and not (isinstance(bound, (int, float)) and math.isfinite(bound)):
            raise MisconfigurationException(f"{name} must be a number or None, got {bound!r}")

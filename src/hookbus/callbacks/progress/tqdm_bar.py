"""``TQDMProgressBar``: bars drawn with the package tqdm, which is an optional extra."""

from __future__ import annotations

import io
import math
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rich import get_console

from hookbus.callbacks.progress.lines import LinePrinter, metric_text
from hookbus.callbacks.progress.meter import Meter
from hookbus.callbacks.progress.timed import TimedProgressBar
from hookbus.errors import MisconfigurationException, MissingExtraError
from hookbus.hookspecs.types import LightningModule, Trainer

#: Kinds of bars by the stage of the trainer in which they are shown.
_KINDS = {"sanity_check": "sanity", "train": "train", "validate": "validate", "test": "test", "predict": "predict"}


class TQDMProgressBar(TimedProgressBar):
    """A bar for the epoch, and one for an evaluation while that runs; in a log file, a line now and then.

    The bars are made by ``init_train_tqdm`` and its like, which a subclass may override to change them; a notebook gets
    tqdm's own kind of bars. They need the package tqdm: ``pip install "hookbus[tqdm]"``.

    Args:
        refresh_rate: 0 shows nothing; any other number is accepted for scripts written for Lightning, where it counts
            batches: here the bar refreshes by time.
        process_position: how many other bars stand above these.
        leave: leave a bar behind for each epoch.

    Raises:
        MisconfigurationException: a number is negative.
        MissingExtraError: tqdm is not installed.

    Example:
        >>> from hookbus.callbacks import TQDMProgressBar
        >>> class Short(TQDMProgressBar):
        ...     def init_train_tqdm(self):
        ...         bar = super().init_train_tqdm()
        ...         bar.ncols = 60
        ...         return bar
    """

    BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"

    def __init__(self, refresh_rate: int = 1, process_position: int = 0, leave: bool = False) -> None:
        super().__init__()
        for name, value in (("refresh_rate", refresh_rate), ("process_position", process_position)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise MisconfigurationException(f"{name} must be a whole number of 0 or more, got {value!r}")
        if find_spec("tqdm") is None:
            raise MissingExtraError(
                'TQDMProgressBar draws with the package tqdm, which is not installed: pip install "hookbus[tqdm]", or use '
                "RichProgressBar",
                name="tqdm",
            )
        self._refresh_rate = refresh_rate
        self._process_position = process_position
        self._leave = leave
        self._bars: dict[str, Any] = {}  # by kind of loop; closed ones until the next of their kind
        self._open_kinds: set[str] = set()
        self._followed: dict[str, Meter] = {}  # whose state a bar shows
        self._lines = LinePrinter()
        if refresh_rate == 0:
            self.disable()

    @property
    def refresh_rate(self) -> int:
        """As given."""
        return self._refresh_rate

    @property
    def process_position(self) -> int:
        """As given."""
        return self._process_position

    @property
    def is_enabled(self) -> bool:
        """Whether anything is shown."""
        return super().is_enabled and self._refresh_rate > 0

    # --- the bars -----------------------------------------------------------------------------------------------------

    @property
    def train_progress_bar(self) -> Any:
        """The bar of the training.

        Raises:
            TypeError: there is none, as for the bars below.
        """
        return self._bar("train")

    @property
    def val_progress_bar(self) -> Any:
        """The bar of the validation or sanity check."""
        sanity = self._trainer is not None and self._trainer.sanity_checking
        return self._bar(
            "sanity" if sanity or ("sanity" in self._bars and "validate" not in self._bars) else "validate"
        )

    @property
    def test_progress_bar(self) -> Any:
        """The bar of the test."""
        return self._bar("test")

    @property
    def predict_progress_bar(self) -> Any:
        """The bar of the prediction."""
        return self._bar("predict")

    def _bar(self, kind: str) -> Any:
        running = self._train if kind == "train" else self._eval
        if running is not None and running.kind == kind:
            return self._bar_of(running)
        if kind not in self._bars and self._trainer is not None and kind == _KINDS.get(self._trainer.state.stage):
            self._make_bar(kind)  # before its first batch, or disabled
        if kind not in self._bars:
            raise TypeError(f"{type(self).__name__} has no {kind} bar now: it is made when its loop begins")
        return self._bars[kind]

    def _make_bar(self, kind: str) -> Any:
        name = {"validate": "validation"}.get(kind, kind)
        bar = self._bars[kind] = getattr(self, f"init_{name}_tqdm")()
        self._open_kinds.add(kind)
        return bar

    def _bar_of(self, meter: Meter) -> Any:
        """The bar of a loop that runs; it begins with the loop, or with its epoch."""
        kind = meter.kind
        bar = self._bars[kind] if kind in self._open_kinds else self._make_bar(kind)
        if self._followed.get(kind) is not meter:
            self._followed[kind] = meter
            total = meter.total if math.isfinite(meter.total) else None
            if kind == "train":
                bar.reset(total)
            # Batches done before a resumed epoch began do not count for the speed.
            _begun(bar, meter).initial = meter.first
            bar.total = total
            bar.set_description(meter.description.rstrip(), refresh=False)  # once: who sets another keeps it
        return bar

    def init_sanity_tqdm(self) -> Any:
        """Make the bar of the sanity check."""
        return self._make(self.sanity_check_description, leave=False)

    def init_train_tqdm(self) -> Any:
        """Make the bar of the training."""
        return self._make(self.train_description, smoothing=0)

    def init_validation_tqdm(self) -> Any:
        """Make the bar of a validation; within a fit it stands below that of the training, and goes away."""
        below = self._train is not None
        return self._make(self.validation_description, below=below, leave=not below)

    def init_test_tqdm(self) -> Any:
        """Make the bar of a test."""
        return self._make(self.test_description)

    def init_predict_tqdm(self) -> Any:
        """Make the bar of a prediction."""
        return self._make(self.predict_description, smoothing=0)

    def _make(self, description: str, *, below: bool = False, leave: bool = True, **options: Any) -> Any:
        return import_module("tqdm.auto").tqdm(
            desc=description,
            position=2 * self._process_position + below,
            leave=leave,
            dynamic_ncols=True,
            file=sys.stdout if self._live else io.StringIO(),
            bar_format=self.BAR_FORMAT,
            disable=not self._shown,
            **options,
        )

    # --- drawing ------------------------------------------------------------------------------------------------------

    def _draw(self, meter: Meter, metrics: dict[str, Any], *, final: bool) -> None:
        bar = self._bar_of(meter)
        bar.n = meter.done
        if metrics and meter.kind == "train":
            texts = {name: metric_text(value) for name, value in metrics.items()}
            bar.set_postfix(texts, refresh=False)
        if self._live:
            bar.refresh()
        elif self._lines.is_due(meter, final=final):
            self._lines.write(str(bar))

    def _is_live(self) -> bool:
        return sys.stdout.isatty() or get_console().is_jupyter

    def _end_meter(self, meter: Meter) -> None:
        self._close(meter.kind)

    def _stop_display(self) -> None:
        for kind in list(self._open_kinds):
            self._close(kind)
        self._followed.clear()
        self._lines.forget()

    def _close(self, kind: str) -> None:
        if kind in self._open_kinds:
            self._open_kinds.remove(kind)
            self._bars[kind].close()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the epoch's bar; with ``leave``, below the one before."""
        if self._leave and self._train is not None:
            self._refresh(trainer, pl_module, final=True)
            self._close("train")
        super().on_train_epoch_start(trainer, pl_module)

    def print(self, *args: Any, sep: str = " ", **kwargs: Any) -> None:
        """Print above the bars."""
        if self._open_kinds:
            next(iter(self._bars.values())).write(sep.join(map(str, args)), **kwargs)
        else:
            super().print(*args, sep=sep, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        # Bars hold locks and files, which cannot go to another process.
        return {**self.__dict__, "_bars": {}, "_open_kinds": set(), "_followed": {}, "_shown": False}


def _begun(bar: Any, meter: Meter) -> Any:
    """The bar, with the loop's beginning as its own: it is made, or begins anew, when it is first drawn."""
    if hasattr(bar, "start_t"):  # a disabled one has no clock
        bar.start_t -= meter.elapsed
    return bar

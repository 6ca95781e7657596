"""``ThroughputMonitor``: logs batches, samples, items and operations per second of every stage.

Names are ``train/device/samples_per_sec`` and the like; :meth:`hookbus.engine.throughput.Throughput.compute` lists
them. The clock of the training stands still during validations. On CUDA each batch is waited for, as times would not
be true otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from hookbus.callback import NumberedCallback
from hookbus.callbacks.log_moments import LogMoments, log
from hookbus.engine.peak_flops import get_available_flops
from hookbus.engine.throughput import Throughput
from hookbus.errors import MisconfigurationException

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl

_DTYPES = {"16": torch.float16, "bf16": torch.bfloat16, "64": torch.float64}


@dataclass
class _Stage:
    """What is counted in one stage."""

    throughput: Throughput
    began: float = 0.0
    batches: int = 0
    samples: int = 0
    lengths: int = 0


class ThroughputMonitor(NumberedCallback):
    """Logs how fast each stage is, as often as ``log_every_n_steps`` says.

    Rates of operations are logged if the module has an attribute ``flops_per_batch``
    (:func:`hookbus.engine.throughput.measure_flops` finds the number), and their share of the device's peak if that is
    known. In evaluations the step is the number of batches, counted over all validations of a fit, or over all calls of
    ``validate``, ``test`` or ``predict``, so that no step comes twice.

    Args:
        batch_size_fn: gives the number of samples in a batch.
        length_fn: gives the number of items (tokens, say) in a batch.
        window_size: rates are those over the last so many batches.
        separator: between the parts of a name.

    Raises:
        MisconfigurationException: an argument is out of range.

    Example:
        >>> from hookbus.callbacks import ThroughputMonitor
        >>> monitor = ThroughputMonitor(batch_size_fn=lambda batch: len(batch[0]), window_size=50)
    """

    role: ClassVar[str] = "monitor"

    def __init__(
        self,
        batch_size_fn: Callable[[Any], int],
        length_fn: Callable[[Any], int] | None = None,
        *,
        window_size: int = 100,
        separator: str = "/",
    ) -> None:
        super().__init__()
        if not callable(batch_size_fn):
            raise MisconfigurationException(
                f"batch_size_fn must be a function from a batch to its number of samples, got {batch_size_fn!r}"
            )
        if length_fn is not None and not callable(length_fn):
            raise MisconfigurationException(
                f"length_fn must be a function from a batch to its number of items, or None; got {length_fn!r}"
            )
        try:
            Throughput(window_size=window_size)
        except ValueError as error:
            raise MisconfigurationException(str(error)) from None
        self.batch_size_fn = batch_size_fn
        self.length_fn = length_fn
        self.kwargs: dict[str, Any] = {"window_size": window_size, "separator": separator}
        self.available_flops: int | None = None
        self._stages: dict[str, _Stage] = {}
        self._moments = LogMoments()
        self._evaluated: dict[str, int] = {}
        self._evaluated_alone: dict[str, int] = {}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Begin with nothing counted."""
        dtype = _DTYPES.get(trainer.precision.partition("-")[0], torch.float32)
        self.available_flops = get_available_flops(trainer.strategy.root_device, dtype)
        if stage == "fit" and trainer.global_step == 0:
            self._evaluated = {}
        self._stages = {}

    def _begin(self, trainer: pl.Trainer) -> None:
        """The stage's clock runs from here."""
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        throughput = Throughput(self.available_flops, trainer.world_size, **self.kwargs)
        self._stages[str(trainer.state.stage)] = _Stage(throughput, began=time.perf_counter())
        self._moments.begin_evaluation()

    def _count(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any) -> _Stage | None:
        """Count one batch; None where nothing is counted."""
        if trainer.sanity_checking or not trainer.is_global_zero:
            return None
        stage = self._stages[str(trainer.state.stage)]
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize(trainer.strategy.root_device)
        elapsed = time.perf_counter() - stage.began
        with torch.inference_mode():
            stage.samples += int(self.batch_size_fn(batch))
            stage.lengths += 0 if self.length_fn is None else int(self.length_fn(batch))
        stage.batches += 1
        stage.throughput.update(
            time=elapsed,
            batches=stage.batches,
            samples=stage.samples,
            lengths=None if self.length_fn is None else stage.lengths,
            flops=getattr(pl_module, "flops_per_batch", None),
        )
        return stage

    def _log(self, trainer: pl.Trainer, stage: _Stage, step: int | None = None, **more: float) -> None:
        word, separator = str(trainer.state.stage), stage.throughput.separator
        metrics = {f"{word}{separator}{name}": value for name, value in stage.throughput.compute().items()}
        log(trainer, {**metrics, **more}, step)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Training begins."""
        self._begin(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count; log, if it is time to and the batch ends in an optimiser step, whose time is part of it."""
        stage = self._count(trainer, pl_module, batch)
        if stage is not None and not trainer.fit_loop._should_accumulate() and self._moments.due(trainer):
            self._log(trainer, stage, epoch=trainer.current_epoch)

    def _evaluate_batch(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any) -> None:
        stage = self._count(trainer, pl_module, batch)
        if stage is None:
            return
        fn, word = str(trainer.state.fn), str(trainer.state.stage)
        evaluated = self._evaluated if fn == "fit" else self._evaluated_alone
        evaluated[word] = evaluated.get(word, 0) + 1
        self._moments.begin_batch()
        if self._moments.due(trainer):
            self._log(trainer, stage, evaluated[word])

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A validation begins."""
        self._begin(trainer)

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count, and log if it is time to."""
        self._evaluate_batch(trainer, pl_module, batch)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The training's clock goes on where it stood after its last batch."""
        training = self._stages.get("train")
        if training is not None and not trainer.sanity_checking:
            training.began = time.perf_counter() - training.throughput.elapsed

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A test begins."""
        self._begin(trainer)

    def on_test_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count, and log if it is time to."""
        self._evaluate_batch(trainer, pl_module, batch)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A prediction begins."""
        self._begin(trainer)

    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count, and log if it is time to."""
        self._evaluate_batch(trainer, pl_module, batch)

    def state_dict(self) -> dict[str, Any]:
        """How many batches were evaluated, so that their steps go on from there."""
        return {"evaluated": dict(self._evaluated)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self._evaluated = dict(state_dict["evaluated"])

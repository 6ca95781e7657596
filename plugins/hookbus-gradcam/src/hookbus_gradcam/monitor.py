"""``GradCamMonitor``: where the network looks, drawn for the same validation samples every few epochs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus import Callback
from hookbus_gradcam.methods import method_called

if TYPE_CHECKING:
    from hookbus_gradcam.gallery import Sample
    from hookbus_gradcam.maps import Reshape

# torch is imported when there is something to do: commands that list plugins make this callback, too.


@dataclass
class _State:
    """Of one fit."""

    layers: list[str] | None = None
    last_epoch: int = -1
    folder: Path = Path()
    collecting: bool = False
    seen: dict[int, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    off: bool = False


class GradCamMonitor(Callback):
    """A callback that draws class activation maps of some validation samples every few epochs of ``fit``.

    The samples are taken from the batches as validation loads them, and what is drawn is computed once validation is over;
    so nothing is loaded for it, and weights, metrics and random numbers are those of a run without it. The pictures are
    written as PNG files and given to the loggers by the hook ``log_image``, as ``gradcam/LAYER``.

    What keeps it from drawing (no convolution, no image in the batch, a model without ``forward``) is said once, and the
    run goes on. In the sanity check it does nothing, under ``fast_dev_run`` it computes maps and writes nothing.

    Args:
        every: draw at the first validation in or after every N-th epoch; 0 for never.
        samples: the first so many samples of each validation loader; or a list of indices in the first loader; or a
            mapping from loaders to indices. Indices count the samples in the order in which validation loads them.
        layers: names of the layers, as of :func:`hookbus_gradcam.class_activation_maps`; None for the convolution that is
            called last, which is said once.
        method: one of :data:`hookbus_gradcam.methods.METHODS`.
        target: what is explained: the ``predicted`` class, that of the ``label``, or the class with this number.
        input: where in a batch the model's input is, a key or an index; empty for the usual places.
        output: where in the model's output the class scores are, a key, attribute or index; empty for the usual places.
        call: which call of a layer that is called several times; the last one by default.
        reshape: for layers whose output is no map, see :func:`hookbus_gradcam.tokens`.
        directory: where the pictures go; None for ``gradcam`` in the log folder of the run.
        yields: whether it leaves the work to another one of its kind, if the trainer has one. The one that a Trainer makes
            by itself does.

    Raises:
        ValueError: arguments that make no sense.
    """

    role = "monitor"

    def __init__(
        self,
        every: int = 1,
        samples: int | Sequence[int] | Mapping[int, Sequence[int]] = 4,
        layers: str | Sequence[str] | None = None,
        *,
        method: str = "gradcam",
        target: str | int = "predicted",
        input: str = "",
        output: str = "",
        call: int = -1,
        reshape: Reshape | Mapping[str, Reshape] | None = None,
        directory: str | Path | None = None,
        yields: bool = False,
    ) -> None:
        if every < 0:
            raise ValueError(f"every must be a number of epochs, or 0 for never; got {every}")
        if isinstance(target, str) and target not in ("predicted", "label"):
            raise ValueError(f"target must be 'predicted', 'label' or the number of a class, got {target!r}")
        method_called(method)
        _check_samples(samples)
        self.every, self.method, self.target = every, method, target
        self.layers = [layers] if isinstance(layers, str) else None if layers is None else list(layers)
        self.samples = samples if isinstance(samples, (int, Mapping)) else {0: list(samples)}
        self.input, self.output, self.call, self.reshape = input, output, call, reshape
        self.directory = directory
        self.yields = yields
        self._state = _State(off=True)

    # -- the run -----------------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin anew."""
        others = _others(self, trainer) if self.yields else []
        self._state = _State(self.layers, off=not self.every or bool(others))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """See where the run stands, now that a checkpoint has been loaded, and on all processes where its folder is."""
        state = self._state
        if state.off:
            return
        if trainer.world_size > 1 and "ddp" not in type(trainer.strategy).__name__.lower():
            trainer.print(
                "gradcam: draws nothing, for the model may be spread over processes, and one alone cannot run it"
            )
            state.off = True
            return
        state.last_epoch = trainer.current_epoch - 1
        state.folder = Path(self.directory or trainer.log_dir or trainer.default_root_dir)
        if self.directory is None:
            state.folder /= "gradcam"

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Forget the samples."""
        self._state = _State(off=True)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """See whether this epoch is to be drawn."""
        state = self._state
        due = not state.off and not trainer.sanity_checking and trainer.is_global_zero
        state.collecting = due and self._passed(trainer.current_epoch)
        state.samples, state.seen = [], {}

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Keep the chosen samples of a batch."""
        if self._state.collecting and self._wants(dataloader_idx):
            with _GivingUp(self, trainer):
                self._collect(batch, dataloader_idx)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Draw."""
        state = self._state
        if state.collecting and not state.off:
            state.collecting, state.last_epoch = False, trainer.current_epoch
            with _GivingUp(self, trainer):
                if state.samples:
                    self._draw(trainer, pl_module)
                elif state.seen:
                    raise ValueError(
                        f"none of the samples {self.samples} is among those of the validation: {state.seen}"
                    )
        state.samples = []

    # -- which samples -----------------------------------------------------------------------------------------------

    def _passed(self, epoch: int) -> bool:
        """Whether a multiple of ``every`` epochs has been completed, or is about to be, since the last drawing."""
        return (epoch + 1) // self.every > (self._state.last_epoch + 1) // self.every

    def _wants(self, loader: int) -> bool:
        """Whether some sample of this loader is still to come."""
        seen = self._state.seen.get(loader, 0)
        if isinstance(self.samples, int):
            return seen < self.samples
        return seen <= max(self.samples.get(loader, ()), default=-1)

    def _collect(self, batch: Any, loader: int) -> None:
        from hookbus_gradcam.gallery import taken

        state = self._state
        first = state.seen.get(loader, 0)
        chosen = range(self.samples) if isinstance(self.samples, int) else self.samples.get(loader, ())
        count, samples = taken(batch, chosen, loader=loader, first=first, where=self.input)
        state.seen[loader] = first + count
        state.samples += samples

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _draw(self, trainer: Any, pl_module: Any) -> None:
        from hookbus_gradcam import gallery, images

        state = self._state
        if state.layers is None:
            state.layers = self._last_convolution(trainer, pl_module)
        if not state.layers:
            state.off = True
            return
        found = gallery.pictures(
            pl_module,
            state.samples,
            state.layers,
            method=self.method,
            target=self.target,
            call=self.call,
            reshape=self.reshape,
            output=self.output,
        )
        epoch, step = trainer.current_epoch, trainer.global_step
        for layer, pictures in found.items():
            name = re.sub(r"[^A-Za-z0-9_.-]", "_", layer) or "model"
            path = state.folder / f"epoch={epoch:04d}-step={step:08d}-{name}.png"
            title = f"{self.method} at {layer}, epoch {epoch}"
            image = images.draw(pictures, None if trainer.fast_dev_run else path, title)
            if not trainer.fast_dev_run:
                _log_image(trainer, f"gradcam/{layer}", image, max(step - 1, 0))

    def _last_convolution(self, trainer: Any, pl_module: Any) -> list[str]:
        from hookbus_gradcam.maps import last_convolution

        found = last_convolution(pl_module, self._state.samples[0].input.unsqueeze(0))
        if found is None:
            trainer.print("gradcam: there is no convolution in the model; name layers to draw, or leave the plugin out")
            return []
        trainer.print(f"gradcam: draws layer {found!r}, the last convolution; layers=… chooses others")
        return [found]


def _check_samples(samples: Any) -> None:
    """Refuse what is neither a number of samples, nor indices, nor indices by loader.

    Raises:
        ValueError: says what was expected.
    """

    def is_number(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0

    loaders = samples if isinstance(samples, Mapping) else {0: samples}
    right = is_number(samples) or all(
        is_number(loader)
        and isinstance(indices, Sequence)
        and not isinstance(indices, (str, bytes))
        and all(map(is_number, indices))
        for loader, indices in loaders.items()
    )
    if not right:
        raise ValueError(
            "samples must be a number of samples, a list of indices in the first loader, or a mapping from loaders to lists of "
            f"indices, such as {{0: [7], 1: [3]}}; got {samples!r}"
        )


class _GivingUp:
    """What goes wrong within is said once, after which nothing more is drawn in this fit."""

    def __init__(self, monitor: GradCamMonitor, trainer: Any) -> None:
        self._monitor, self._trainer = monitor, trainer

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        self._monitor._state = _State(off=True)
        if hasattr(self._trainer, "bus"):
            return False  # the bus reports what a monitor raises, and goes on
        warnings.warn(f"gradcam draws nothing more: {type(error).__name__}: {error}", stacklevel=2)
        return True


def _log_image(trainer: Any, key: str, image: Any, step: int) -> None:
    """Give a picture to the loggers: by hookbus's hook, or in a trainer of Lightning's to those that can show it."""
    bus = getattr(trainer, "bus", None)
    if bus is not None:
        bus.fire.log_image(trainer, key, image, step)
        return
    for logger in trainer.loggers:
        if callable(getattr(logger, "log_image", None)):
            logger.log_image(key=key, images=[image], step=step)
        elif hasattr(getattr(logger, "experiment", None), "add_image"):
            logger.experiment.add_image(key, image, step, dataformats="HWC")


def _others(monitor: GradCamMonitor, trainer: Any) -> list[GradCamMonitor]:
    bus = getattr(trainer, "bus", None)
    registered = [plugin for _, plugin in bus.list_name_plugin()] if bus is not None else []
    present = [*trainer.callbacks, *registered]
    return [other for other in present if isinstance(other, GradCamMonitor) and other is not monitor]

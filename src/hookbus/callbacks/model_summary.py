"""``ModelSummary``: prints a table of the network's layers when a fit begins."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from hookbus.callback import Callback
from hookbus.errors import MisconfigurationException
from hookbus.model_summary import ModelSummary as Summary
from hookbus.model_summary import check_depth, summarize, table_as_text, totals_as_text

if TYPE_CHECKING:
    from hookbus.hookspecs import types as pl


class ModelSummary(Callback):
    """Prints the layers with their parameters; with sizes and FLOPs if the module has an ``example_input_array``.

    A Trainer has one by itself unless ``enable_model_summary=False``.

    Args:
        max_depth: how deep the layers listed may be nested: 1 for the module's children only, -1 for all layers, 0 to
            print nothing.
        **summarize_kwargs: passed on to :meth:`summarize`.

    Attributes:
        standby: whether a Trainer added it by itself, so that it gives way to one that a module brings.

    Raises:
        MisconfigurationException: ``max_depth`` is no such number.

    Example:
        >>> from hookbus.callbacks import ModelSummary
        >>> summary = ModelSummary(max_depth=-1)
    """

    role: ClassVar[str] = "monitor"

    standby = False

    def __init__(self, max_depth: int = 1, **summarize_kwargs: Any) -> None:
        try:
            check_depth(max_depth)
        except ValueError as error:
            raise MisconfigurationException(str(error)) from None
        self._max_depth = max_depth
        self._summarize_kwargs = summarize_kwargs

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at the network on each process, as all may have to take part in its forward pass; print on the first."""
        if not self._max_depth:
            return
        summary = self._summary(trainer, pl_module)
        if trainer.is_global_zero:
            self.summarize(
                summary.columns(),
                summary.total_parameters,
                summary.trainable_parameters,
                summary.model_size,
                summary.total_training_modes,
                total_flops=summary.total_flops,
                **self._summarize_kwargs,
            )

    def _summary(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> Summary:
        try:
            return summarize(pl_module, self._max_depth)
        except Exception as error:  # noqa: BLE001 - told; a summary is not worth a run, and is of use without sizes
            warnings.warn(
                f"the model summary shows no sizes, because {type(pl_module).__name__} failed on its example_input_array: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )
            return summarize(pl_module, self._max_depth, measure=False)

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]],
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        total_training_modes: dict[str, int],
        total_flops: int,
        **summarize_kwargs: Any,  # noqa: ARG004 - for those who override it
    ) -> None:
        """Show the summary; override it to show it elsewhere.

        Args:
            summary_data: titles and cells of the table's columns; ``FLOPs`` and sizes only if they were measured.
            total_parameters, trainable_parameters: numbers of parameters.
            model_size: memory of the parameters, in MB.
            total_training_modes: numbers of modules in ``train`` and in ``eval`` mode.
            total_flops: operations of a forward pass; 0 if they were not measured.
            **summarize_kwargs: as given to the constructor.
        """
        flops = total_flops if "FLOPs" in dict(summary_data) else None
        totals = totals_as_text(total_parameters, trainable_parameters, model_size, total_training_modes, flops)
        print("\n".join([table_as_text(summary_data), *totals]), flush=True)


def default_model_summary(*, drawn: bool = False) -> ModelSummary:
    """The summary that suits where output goes: drawn with rich in terminals and notebooks, plain text elsewhere.

    Args:
        drawn: draw it anywhere, since there is a bar of rich's, too.
    """
    from rich import get_console

    from hookbus.callbacks.rich_model_summary import RichModelSummary

    console = get_console()
    drawn = drawn or console.is_terminal or console.is_jupyter
    summary = RichModelSummary() if drawn else ModelSummary()
    summary.standby = True
    return summary

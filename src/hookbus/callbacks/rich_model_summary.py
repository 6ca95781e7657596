"""``RichModelSummary``: the model summary as a table drawn with rich."""

from __future__ import annotations

from typing import Any

from rich import get_console
from rich.table import Table
from rich.text import Text

from hookbus.callbacks.model_summary import ModelSummary
from hookbus.model_summary import totals_as_text


class RichModelSummary(ModelSummary):
    """Prints what :class:`ModelSummary` prints, to rich's global console.

    Args:
        max_depth: as for :class:`ModelSummary`.
        **summarize_kwargs: ``header_style`` is the style of the titles, in rich's notation.

    Example:
        >>> from hookbus.callbacks import RichModelSummary
        >>> summary = RichModelSummary(max_depth=2, header_style="bold")
    """

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]],
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        total_training_modes: dict[str, int],
        total_flops: int,
        **summarize_kwargs: Any,
    ) -> None:
        """Draw the table, and the totals below it."""
        table = Table(header_style=summarize_kwargs.get("header_style", "bold"))
        for title, _ in summary_data:
            numbers = title in ("Params", "FLOPs", "In sizes", "Out sizes")
            table.add_column(
                title,
                justify="right" if numbers else "left",
                style="dim" if title == " " else "",
                no_wrap=title == "Name",
            )
        for row in zip(*(cells for _, cells in summary_data), strict=True):
            table.add_row(*map(Text, row))
        flops = total_flops if "FLOPs" in dict(summary_data) else None
        totals = totals_as_text(total_parameters, trainable_parameters, model_size, total_training_modes, flops)
        console = get_console()
        console.print(table)
        console.print(Text("\n".join(totals)))

"""Progress bars: how far a run is, at next to no cost."""

from __future__ import annotations

from hookbus.callbacks.progress.base import ProgressBar
from hookbus.callbacks.progress.notebook import NotebookProgress
from hookbus.callbacks.progress.plain import PlainProgress
from hookbus.callbacks.progress.rich_bar import RichProgressBar, RichProgressBarTheme
from hookbus.callbacks.progress.timed import TimedProgressBar
from hookbus.callbacks.progress.tqdm_bar import TQDMProgressBar

__all__ = [
    "NotebookProgress",
    "PlainProgress",
    "ProgressBar",
    "RichProgressBar",
    "RichProgressBarTheme",
    "TQDMProgressBar",
    "TimedProgressBar",
    "default_progress_bar",
]


def default_progress_bar() -> ProgressBar:
    """The bar that suits where output goes: a live one in terminals and notebooks, lines of text elsewhere."""
    from rich import get_console

    console = get_console()
    if console.is_jupyter:
        return NotebookProgress()
    return RichProgressBar(theme=RichProgressBarTheme(metrics_format=".4g")) if console.is_terminal else PlainProgress()

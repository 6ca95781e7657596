"""``NotebookProgress``: one output of a notebook's cell that is replaced in place; needs nothing but IPython itself."""

from __future__ import annotations

import html
import math
from importlib import import_module
from typing import Any

from hookbus.callbacks.progress.lines import line_of
from hookbus.callbacks.progress.meter import Meter
from hookbus.callbacks.progress.timed import TimedProgressBar


class NotebookProgress(TimedProgressBar):
    """A bar with a line of text for the epoch, and one below it for an evaluation while that runs.

    A Trainer chooses it by itself in Jupyter and Colab. Where HTML is not shown, the text is.

    Example:
        >>> from hookbus.callbacks.progress import NotebookProgress
        >>> bar = NotebookProgress()
        >>> bar.interval  # seconds between two refreshes, at least
        0.1
    """

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None
        self._rows: dict[str, tuple[str, str]] = {}  # by kind of loop: as HTML and as text

    def _start_display(self) -> None:
        self._rows = {}
        self._handle = import_module("IPython.display").display(self._content(), raw=True, display_id=True)

    def _draw(self, meter: Meter, metrics: dict[str, Any], *, final: bool) -> None:
        text = line_of(meter, metrics, final=final)
        share = f' value="{meter.done}" max="{meter.total:.0f}"' if math.isfinite(meter.total) else ""
        self._rows[meter.kind] = (f"<progress{share}></progress> {html.escape(text)}", text)
        self._update()

    def _end_meter(self, meter: Meter) -> None:
        """Within a fit, the row of an evaluation goes away."""
        if self._train is not None or meter.kind == "sanity":
            self._rows.pop(meter.kind, None)
            self._update()

    def _stop_display(self) -> None:
        self._handle = None

    def _content(self) -> dict[str, str]:
        rows = list(self._rows.values())
        return {"text/html": "<br>".join(row for row, _ in rows), "text/plain": "\n".join(text for _, text in rows)}

    def _update(self) -> None:
        if self._handle is not None:
            self._handle.update(self._content(), raw=True)

    def __getstate__(self) -> dict[str, Any]:
        # The handle belongs to this process's notebook.
        return {**self.__dict__, "_handle": None, "_rows": {}, "_shown": False}

"""Printing tables and JSON: with colours on a terminal, else plain ASCII, for which rich is not even imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Final

_STYLES: Final = {"active": "green", "blocked": "yellow", "broken": "red"}


def coloured() -> bool:
    """Whether standard output is a terminal that wants colours (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def say(text: str = "") -> None:
    """Print a line; characters that the output cannot show are escaped."""
    encoding = sys.stdout.encoding or "ascii"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def complain(text: str) -> None:
    """Print a line to standard error."""
    print(f"hookbus: {text}", file=sys.stderr)


def say_json(value: object) -> None:
    """Print JSON, keys in the order given."""
    import json

    print(json.dumps(value, indent=2))


def heading(text: str) -> None:
    """Print the title of what follows, bold on a terminal."""
    if not coloured():
        say(text)
        return
    from rich.console import Console
    from rich.text import Text

    Console().print(Text(text, style="bold"))


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = (), *, indent: int = 0) -> None:
    """Print aligned columns without borders; columns that are empty throughout are left out.

    Args:
        rows: the cells.
        header: the titles of the columns; none if empty.
        indent: spaces before each row.
    """
    cells = [list(row) for row in rows]
    width = max((len(row) for row in cells), default=len(header))
    used = [i for i in range(width) if header or any(row[i] for row in cells)]
    cells = [[row[i] for i in used] for row in cells]
    if coloured():
        _rich_table(cells, header, indent)
        return
    lines = [list(header), *cells] if header else cells
    widths = [max(len(line[i]) for line in lines) for i in range(len(used))] if lines else []
    for line in lines:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        say(" " * indent + text.rstrip())


def _rich_table(rows: Sequence[Sequence[str]], header: Sequence[str], indent: int) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, show_header=bool(header), pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    columns = header or [""] * max((len(row) for row in rows), default=0)
    for i, title in enumerate(columns):
        last = i == len(columns) - 1
        made.add_column(title, no_wrap=not last, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    Console().print(Padding(made, (0, 0, 0, indent)))

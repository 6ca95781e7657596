"""Rows of figures, one per layer or parameter: to look up by name, to sort, and to print."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from hookbus.hookspecs import nearest

Row = TypeVar("Row")


class Table(Sequence[Row], Generic[Row]):
    """An immutable sequence of rows that is also indexed by name.

    ``print(table)`` and rich's ``print`` show it.

    Args:
        rows: dataclasses with an attribute ``name``.
        columns: titles, and the attributes that are shown under them.
        title: printed above them: of which process they are, where there are several.

    Example:
        >>> from hookbus.taps.monitors import DeadRow
        >>> table = Table([DeadRow("a", 4, (1,), 20), DeadRow("b", 2, (), 20)], {"layer": "name", "share": "share"})
        >>> table["a"].share, table.sorted_by("share")[0].name
        (0.25, 'a')
    """

    def __init__(self, rows: Iterable[Row], columns: Mapping[str, str], title: str | None = None) -> None:
        self._rows = tuple(rows)
        self._columns = dict(columns)
        self.title = title

    @overload
    def __getitem__(self, index: int | str) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Table[Row]: ...
    def __getitem__(self, index: int | str | slice) -> Row | Table[Row]:
        if isinstance(index, slice):
            return Table(self._rows[index], self._columns, self.title)
        if isinstance(index, int):
            return self._rows[index]
        for row in reversed(self._rows):
            if row.name == index:  # type: ignore[attr-defined]
                return row
        names = [row.name for row in self._rows]  # type: ignore[attr-defined]
        guess = nearest(index, names)
        hint = f"did you mean {guess!r}?" if guess else f"there are {', '.join(names) or 'none yet'}"
        raise KeyError(f"there is no row {index!r}; {hint}")

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def sorted_by(self, attribute: str, *, descending: bool = True) -> Table[Row]:
        """The same rows in the order of one of their attributes; those for which it is None come last."""
        known = [row for row in self._rows if getattr(row, attribute) is not None]
        unknown = [row for row in self._rows if getattr(row, attribute) is None]
        ordered = sorted(known, key=lambda row: getattr(row, attribute), reverse=descending)
        return Table([*ordered, *unknown], self._columns, self.title)

    def __rich__(self) -> RichTable:
        table = RichTable(header_style="bold", title=self.title)
        for title in self._columns:
            named = self._columns[title] == "name"
            table.add_column(title, justify="left" if named else "right", no_wrap=not named, overflow="fold")
        for row in self._rows:
            table.add_row(*(Text(_shown(getattr(row, attribute))) for attribute in self._columns.values()))
        return table

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=240, color_system=None).print(self)
        return text.getvalue()

    def __repr__(self) -> str:
        return f"<Table of {len(self)} rows: {', '.join(self._columns)}>"


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) if value != "" else "(the network)"

"""A table that fits its terminal, and keeps every column readable."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table

NAME = 24
"""Least width of the first column, which has the names, if its names are longer."""

TEXT = 10
"""Least width of any other text."""

PROSE = 30
"""Least width of prose: texts of `LONG` characters or more."""

LONG = 60
"""Length of a text from which on it is prose."""

GAPS = (3, 1)
"""Columns between two columns of a table: as usual, and where the terminal is narrow."""


class FittingTable:
    """A table without vertical lines. Where the terminal is too narrow, it gives way step by step:

    1. texts are folded, the longest first, but never below `NAME`, `TEXT` or `PROSE`;
    2. the columns move together;
    3. the spare columns are left out, one by one;
    4. each row becomes a block of its own, with one cell in a line.

    Args:
        title: above the table; empty for none.
        columns: their names.
        rows: the cells, as shown.
        numbers: columns of numbers, which stand at the right and are never folded.
        spare: columns that a narrow terminal may leave out, the first one first.
    """

    def __init__(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        numbers: Collection[str],
        spare: Sequence[str],
    ) -> None:
        self._title = title
        self._columns = columns
        self._rows = rows
        self._numbers = numbers
        self._spare = spare

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        kept = [*range(len(self._columns))]
        for without in ("", *self._spare):
            kept = [i for i in kept if not without or self._columns[i] != without]
            for gap in GAPS:
                widths = self._widths(kept, options.max_width - gap * (len(kept) - 1))
                if widths is not None:
                    yield self._table(kept, widths, gap)
                    return
        yield self._blocks()

    def _widths(self, kept: Sequence[int], room: int) -> list[int] | None:
        """Return the width of each column; None if they do not fit into these columns of the terminal."""
        widths = [self._natural(i) for i in kept]
        least = [min(width, self._least(i, width)) for i, width in zip(kept, widths, strict=True)]
        if sum(least) > room:
            return None
        while sum(widths) > room:
            at = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
            widths[at] -= 1
        return widths

    def _natural(self, column: int) -> int:
        return max(cell_len(text) for text in [self._columns[column], *(row[column] for row in self._rows)])

    def _least(self, column: int, natural: int) -> int:
        name = self._columns[column]
        if name in self._numbers:
            return natural
        enough = NAME if column == 0 else PROSE if natural > LONG else TEXT
        return max(enough, *map(cell_len, name.split() or [""]))

    def _table(self, kept: Sequence[int], widths: Sequence[int], gap: int) -> Table:
        made = Table(
            box=box.SIMPLE_HEAD,
            padding=(0, gap // 2),
            show_edge=False,
            pad_edge=False,
            title=self._title or None,
            title_justify="left",
            title_style="bold",
        )
        for i, width in zip(kept, widths, strict=True):
            number = self._columns[i] in self._numbers
            made.add_column(
                self._columns[i],
                justify="right" if number else "left",
                overflow="fold",
                no_wrap=number,
                width=width,
            )
        for row in self._rows:
            made.add_row(*(row[i] for i in kept))
        return made

    def _blocks(self) -> Table:
        made = Table.grid(padding=(0, 2))
        made.title, made.title_justify = self._title or None, "left"
        made.add_column(style="bold", no_wrap=True)
        made.add_column(overflow="fold")
        for n, row in enumerate(self._rows):
            if n:
                made.add_row("", "")
            for name, text in zip(self._columns, row, strict=True):
                made.add_row(name, text)
        return made

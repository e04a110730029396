"""Where things are written: data to stdout, talk to stderr; tables on a terminal, aligned text elsewhere, or JSON."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from counterfoil.cli.text import visible

STYLES: Final = {
    "accepted": "green",
    "finished": "green",
    "ok": "green",
    "uncertain": "bold yellow",
    "unresolved": "yellow",
    "retry-scheduled": "yellow",
    "warning": "yellow",
    "rejected": "red",
    "failed": "red",
    "corrupt": "bold red",
    "error": "bold red",
}
PADDED_MAX: Final = 48
_GAP: Final = 2
_COLOURED: Final = ("state", "level", "record")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        title: its heading.
        right: its cells stand at the right.
        fold: the width below which its cells are not folded where a terminal is narrow; 0: they never are, so
            that a name can be read, and copied, in one piece.
    """

    title: str
    right: bool = False
    fold: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that has a shorter form for narrow terminals."""

    text: str
    short: str


def say(text: str) -> None:
    """Tell people something, on stderr."""
    click.echo(visible_lines(text), err=True)


def line(text: str = "", *, style: str | None = None) -> None:
    """Write a line of data, in a style where stdout is a terminal."""
    if style is None or not sys.stdout.isatty():
        click.echo(visible_lines(text))
        return
    from rich.text import Text

    _console().print(Text(visible_lines(text), style=style), soft_wrap=True)


def visible_lines(text: str) -> str:
    """Escape everything but line ends."""
    return "\n".join(visible(each) for each in text.split("\n"))


def document(found: dict[str, Any]) -> None:
    """Write one JSON document; everything outside ASCII is escaped."""
    click.echo(json.dumps(found, ensure_ascii=True, indent=2))


def table(columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]]) -> None:
    """Write a table. Its cells are escaped already; a cell that is a state gets its colour."""
    narrow = _console().width if sys.stdout.isatty() else None
    cells = [[cell.text if isinstance(cell, Cell) else cell for cell in row] for row in rows]
    widths = _widths(columns, cells, folding=narrow is not None)
    if narrow is not None and _total(widths) > narrow:
        cells = [[cell.short if isinstance(cell, Cell) else cell for cell in row] for row in rows]
        widths = _widths(columns, cells, folding=True)
        _shrink(columns, widths, narrow)
    _row(columns, [column.title for column in columns], widths, style="bold")
    for row in cells:
        _row(columns, row, widths)


def _console() -> Any:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[str]], *, folding: bool) -> list[int]:
    """Return how wide each column is padded. One long name does not pad every row: its own gets longer."""
    from rich.cells import cell_len

    widths = []
    for index, column in enumerate(columns):
        lengths = [cell_len(row[index]) for row in cells]
        padded = [each for each in lengths if each <= PADDED_MAX or (folding and column.fold)]
        widths.append(max([cell_len(column.title), *padded]))
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _shrink(columns: Sequence[Column], widths: list[int], most: int) -> None:
    """Narrow the columns that may be folded, the widest first, until the table fits or none is left."""
    while _total(widths) > most:
        foldable = [index for index, column in enumerate(columns) if column.fold and widths[index] > column.fold]
        if not foldable:
            return
        widths[max(foldable, key=lambda index: widths[index])] -= 1


def _row(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int], *, style: str = "") -> None:
    """Write one row; a folded cell makes it several lines."""
    from rich.cells import cell_len
    from rich.text import Text

    coloured = sys.stdout.isatty()
    folded = [
        _folded(cell, width) if coloured and column.fold and cell_len(cell) > width else [cell]
        for column, cell, width in zip(columns, row, widths, strict=True)
    ]
    for parts in itertools.zip_longest(*folded, fillvalue=""):
        found = Text()
        for index, (column, part, width) in enumerate(zip(columns, parts, widths, strict=True)):
            gap = " " * (width - cell_len(part))
            found.append(gap + part if column.right else part + gap, style or _style(column, part))
            found.append(" " * _GAP if index < len(columns) - 1 else "")
        found.rstrip()
        if coloured:
            _console().print(found, soft_wrap=True)
        else:
            click.echo(found.plain)


def _style(column: Column, cell: str) -> str:
    return STYLES.get(cell, "") if column.title in _COLOURED else ""


def _folded(cell: str, width: int) -> list[str]:
    from rich.text import Text

    return [each.plain.rstrip() for each in Text(cell).wrap(_console(), width, overflow="fold")]

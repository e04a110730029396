"""Where things are written: data to stdout, talk to stderr; tables on a terminal, aligned text elsewhere, or JSON."""

from __future__ import annotations

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
_COLOURED: Final = ("state", "level", "record")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        title: its heading.
        right: its cells stand at the right.
        fold: the width below which its cells are not folded where a terminal is narrow; 0: they never are.
    """

    title: str
    right: bool = False
    fold: int = 0


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


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Write a table. Its cells are escaped already; a cell that is a state gets its colour."""
    if sys.stdout.isatty():
        _rich(columns, rows)
    else:
        _plain(columns, rows)


def _console() -> Any:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)


def _rich(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        widest = max((len(row[index]) for row in rows), default=0)
        grid.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            no_wrap=not column.fold,
            overflow="fold",
            min_width=min(column.fold, max(widest, len(column.title))) or None,
        )
    for row in rows:
        grid.add_row(
            *(
                Text(cell, style=STYLES.get(cell, "") if column.title in _COLOURED else "")
                for column, cell in zip(columns, row, strict=True)
            )
        )
    _console().print(grid)


def _plain(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.cells import cell_len

    cells = [[column.title for column in columns], *rows]
    widths = [max(cell_len(row[index]) for row in cells) for index in range(len(columns))]
    for row in cells:
        padded = []
        for column, cell, width in zip(columns, row, widths, strict=True):
            gap = " " * (width - cell_len(cell))
            padded.append(gap + cell if column.right else cell + gap)
        click.echo("  ".join(padded).rstrip())

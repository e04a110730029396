"""Groups of commands whose help says what each one does, in a whole sentence."""

from __future__ import annotations

from typing import Final

import click

_WHOLE: Final = 1_000


class Group(click.Group):
    """A group that folds the sentences which a narrow terminal would cut."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one row for each command."""
        rows = [(name, self.commands[name].get_short_help_str(_WHOLE)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

"""The command line: `counterfoil`, which needs the extra `cli`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

MISSING = (
    "counterfoil: the command line needs the extra `cli`: pip install 'counterfoil[cli]', or '.[cli]' in a clone of it"
)


def main(args: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0: done, nothing found. 1: found something. 2: usage. 3: the ledger is unavailable. 4: somebody else decided.
    70: a defect of counterfoil. 130: interrupted.
    """
    try:
        import click
        import rich
    except ImportError:
        sys.stderr.write(f"{MISSING}\n")
        return 2
    del click, rich
    from counterfoil.cli.commands import program

    return program.run(args)

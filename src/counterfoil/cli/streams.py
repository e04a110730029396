"""The standard streams: closed ones, full ones, and ones that nobody reads."""

from __future__ import annotations

import io
import os
import sys
from typing import Final

_STANDARD: Final = ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY))


def ready() -> None:
    """Make them fit for use.

    Those that the caller closed (`>&-`) are taken, so that no file that is opened later is written to by mistake: a
    database must not become stdout. What is written to such a stdout is an error, as elsewhere; talk is dropped.
    """
    for descriptor, flags in _STANDARD:
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest that is free is this one.
            os.set_inheritable(os.open(os.devnull, flags), True)  # noqa: FBT003 - it takes no names
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a letter gets its escape.
            stream.reconfigure(errors="backslashreplace")


def drop() -> None:
    """Let nothing more be written to a stdout that takes nothing, at the end of the process either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""Where in the user's own code an error was raised, for people who only see its type."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Final

_LIBRARY: Final = str(Path(__file__).resolve().parents[1])
_OTHERS: Final = tuple({path for name in ("stdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))})


def raised_at(error: BaseException) -> str:
    """Return the innermost place of the user's own code that an error passed through, as `shop.py:31`, or ""."""
    places: list[tuple[str, int]] = []
    at = error.__traceback__
    while at is not None:
        places.append((at.tb_frame.f_code.co_filename, at.tb_lineno))
        at = at.tb_next
    return _innermost(places)


def not_imported(error: BaseException, name: str) -> str:
    """Say why a module could not be imported, and where it was raised."""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        return str(error)
    if isinstance(error, SyntaxError):
        where, said = _innermost([(error.filename or "", error.lineno or 0)]), error.msg
    else:
        where, said = raised_at(error), str(error)
    return f"{f'{where}: ' if where else ''}{type(error).__name__}{f': {said}' if said else ''}"


def _innermost(places: list[tuple[str, int]]) -> str:
    # The last that is in the user's own code; one in other people's if there is none.
    foreign = [place for place in places if not place[0].startswith(("<", _LIBRARY))]
    own = [place for place in foreign if not place[0].startswith(_OTHERS)]
    for path, number in (own or foreign)[-1:]:
        file = Path(path)
        here = Path.cwd()
        return f"{file.relative_to(here) if file.is_relative_to(here) else file.name}:{number}"
    return ""

"""What a command line names as `module:attribute`, imported as `python -m` would."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from counterfoil.errors import UsageError
from counterfoil.runtime.raised import not_imported


def named(target: str, *, what: str, example: str) -> Any:
    """Import `module:attribute`, or `file.py:attribute`; None where the module has no such attribute.

    Args:
        target: what was said.
        what: what the attribute holds, for the error.
        example: a good target, for the error.

    Raises:
        UsageError: it names no module that can be imported.
    """
    name, colon, attribute = target.rpartition(":")
    if not name or not colon or not attribute:
        raise UsageError(f"{what} are named module:attribute, not {target!r}", hint=f"for example {example}")
    folder = Path.cwd()
    if name.endswith(".py"):
        folder, name = Path(name).resolve().parent, Path(name).stem
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found: Any = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise UsageError(f"module {name!r} cannot be imported: {not_imported(error, name)}") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found

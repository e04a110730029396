"""Finding what a command line names: a function of a module, or of a file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from counterfoil.errors import UsageError
from counterfoil.runtime.raised import not_imported


def find(target: str, *, what: str, example: str) -> tuple[ModuleType, Callable[..., Any]]:
    """Import the module of `module:function`, or of `file.py:function`, and return it with the function.

    Raises:
        UsageError: there is no such function.
    """
    name, colon, qualname = target.rpartition(":")
    if not name or not colon or not qualname:
        raise UsageError(f"a {what} is named module:{what}, not {target!r}", hint=f"for example {example}")
    folder = Path.cwd()
    if name.endswith(".py"):
        folder, name = Path(name).resolve().parent, Path(name).stem
    if str(folder) not in sys.path:
        # As `python -m` does: what is here can be imported.
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise UsageError(f"module {name!r} cannot be imported: {not_imported(error, name)}") from error
    return module, function(module, qualname)


def function(module: ModuleType, qualname: str) -> Callable[..., Any]:
    """Return a function of a module.

    Raises:
        UsageError: there is none.
    """
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UsageError(f"{module.__name__!r} has no function {qualname!r}")
    return found  # type: ignore[no-any-return]

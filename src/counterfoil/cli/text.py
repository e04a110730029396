"""How things are written for people: names escaped, times with their age, payloads redacted."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from counterfoil.protocol.exported import hidden

PROGRAM: Final = "counterfoil"
_UNITS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def visible(text: str) -> str:
    """Write what has no glyph of its own as an escape: control and format characters, odd spaces, surrogates."""
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def escaped(name: str) -> str:
    r"""Escape a name for a terminal, a log or a page (rule L13).

    Format characters such as the right-to-left override would reorder what stands beside them, and odd
    spaces cannot be seen; they are written as `\u202e`. So are backslashes, and a space at either end.
    """
    inner = "".join(_escape(char) if char == "\\" or not char.isprintable() else char for char in name)
    if inner[:1] == " ":
        inner = f"\\x20{inner[1:]}"
    return f"{inner[:-1]}\\x20" if inner[-1:] == " " else inner


def _escape(char: str) -> str:
    code = ord(char)
    if char == "\\":
        return "\\\\"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def word(value: str) -> str:
    """Write a word for a shell (bash, zsh), so that a command can be copied from a page."""
    if visible(value) == value:
        return shlex.quote(value)
    inner = escaped(value).replace("'", "\\'")
    return f"$'{inner}'"


def command(*words: str) -> str:
    """Write a command of ours for a shell, so that it works where this one did."""
    return " ".join(word(each) for each in (*_called(), *words))


def _called() -> list[str]:
    """Return how this program was called, or its plain name where a shell finds this same file by it."""
    path = Path(sys.argv[0])
    if path.name == "__main__.py" and path.parent.name == PROGRAM:
        return [sys.executable, "-m", PROGRAM]
    found = shutil.which(PROGRAM)
    if path.name != PROGRAM or (found is not None and _same(Path(found), path)):
        return [PROGRAM]
    return [sys.argv[0]]


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def operands(*names: str) -> list[str]:
    """Guard names that look like options."""
    return ["--", *names] if any(name.startswith("-") for name in names) else list(names)


def when(at: float) -> str:
    """Write a moment in local time, to the second."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return f"@{at:g}"


def clock(at: float) -> str:
    """Write the time of day, to the millisecond."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S.%f")[:-3]
    except (OverflowError, OSError, ValueError):
        return f"@{at:g}"


def age(seconds: float) -> str:
    """Write a duration in its largest unit: `3 min`."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{math.floor(seconds / size)} {unit}"
    return "0 s"


def since(at: float, now: float) -> str:
    """Write a moment and how long ago it was."""
    return f"{when(at)} ({ago(at, now)})"


def ago(at: float, now: float) -> str:
    """Write how long ago a moment was."""
    return f"{age(max(0.0, now - at))} ago"


def value(found: Any, *, shown: bool) -> str:
    """Write a proof, payload or result: redacted, or as JSON."""
    return visible(json.dumps(found, ensure_ascii=False, sort_keys=True)) if shown else hidden(found)


def given(text: str) -> Any:
    """Read a proof from the command line: JSON if it parses as JSON, else the text itself."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(constant: str) -> Any:
    raise ValueError(constant)

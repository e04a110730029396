"""Where a value is no lossless JSON, for the error that says so: the place and the type there, never the value."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from counterfoil.outcomes import Failed, Rejected, Uncertain

# Other keys may be somebody's name or address.
_SHOWN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")
_ROOT: Final = "it"


def unfit(value: Any) -> str | None:
    """Say what in a value has no equal in JSON, the first in reading order; None where nothing is found.

    Args:
        value: of any type; it does not contain itself.
    """
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, found = waiting.pop()
        if why := _why(found):
            return f"{_ROOT if not path else f'what is at {path}'} {why}"
        if isinstance(found, dict):
            waiting += [(f"{path}/{_shown(key)}", child) for key, child in reversed(found.items())]
        elif isinstance(found, list):
            waiting += [(f"{path}/{index}", found[index]) for index in range(len(found) - 1, -1, -1)]
    return None


def _why(value: Any) -> str | None:
    if value is None or isinstance(value, (list, int)):
        # How long integers may be is looked at elsewhere.
        return None
    if isinstance(value, dict):
        return next((f"has a key of type {type(key).__name__}" for key in value if not isinstance(key, str)), None) or (
            None if all(map(_is_text, value)) else "has a key with a lone surrogate"
        )
    if isinstance(value, str):
        return None if _is_text(value) else "has a lone surrogate"
    if isinstance(value, float):
        return None if math.isfinite(value) else "is not a finite number"
    if isinstance(value, (Failed, Rejected)):
        return f"is {type(value).__name__}, which a handler raises and does not return"
    if isinstance(value, Uncertain):
        return "is Uncertain, which no handler returns: let the error through, and the recipient is asked"
    return f"is of type {type(value).__name__}"


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(key: str) -> str:
    return key if _SHOWN_KEY.fullmatch(key) else "…"

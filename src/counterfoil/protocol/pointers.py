"""JSON pointers (RFC 6901): where in an answer something is."""

from __future__ import annotations

import re
from typing import Any, Final

from counterfoil.errors import UsageError

_ESCAPE: Final = re.compile(r"~(?![01])")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")


class Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()
"""What `find` returns where the pointer leads nowhere; JSON's null is something."""


def pointer(text: Any, what: str) -> str:
    """Check that a text is a JSON pointer: empty for the whole, or parts that each open with `/`.

    Raises:
        UsageError: it is not; `what` names it in the message.
    """
    if not isinstance(text, str) or (text and not text.startswith("/")) or _ESCAPE.search(text):
        raise UsageError(
            f"{what} is a JSON pointer, not {text!r}",
            hint="write /data/0/id; ~1 stands for a slash in a name and ~0 for a tilde",
        )
    return text


def find(document: Any, at: str) -> Any:
    """Follow a pointer into a JSON value; `MISSING` where it leads nowhere."""
    for part in at.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict) and name in document:
            document = document[name]
        elif isinstance(document, list) and _INDEX.fullmatch(name) and int(name) < len(document):
            document = document[int(name)]
        else:
            return MISSING
    return document

"""R, the recipient of the stories: it logs, in a file, every request that reaches it and every item that it makes.

The file belongs to none of the lives that write through it, so it survives whichever of them is killed, and every
process reads the same. Its log is the judge.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Recipient:
    """One recipient, from any process. It never deduplicates: each request that it carries out makes one more item.

    Args:
        path: its log.
        now: its clock, in seconds.
    """

    def __init__(self, path: Path, now: Callable[[], float] = lambda: 0.0) -> None:
        self.path = path
        self._now = now

    # --- what it is asked for

    def takes(self, key: str, **what: Any) -> None:
        """A request has reached it."""
        self._write("request", key, what)

    def makes(self, key: str, *, shown_after: float = 0.0, **what: Any) -> str:
        """It makes an item and names it; look-ups show it `shown_after` seconds later."""
        return self._write("item", key, {**what, "shown_at": self._now() + shown_after}, numbered=True)

    def refuses(self, key: str, **what: Any) -> None:
        """It says no, for good."""
        self._write("refusal", key, what)

    def closes(self, key: str) -> None:
        """It will carry out no request under this key, however late one lands."""
        self._write("closed", key, {})

    def lands(self, key: str, **what: Any) -> str | None:
        """Carry out a request, unless its key was closed."""
        if any(line["key"] == key for line in self.log("closed")):
            self.refuses(key, why="closed")
            return None
        return self.makes(key, **what)

    def shows(self, key: str, **what: Any) -> str | None:
        """Look up the first item of a key (or with these properties), as far as it is shown yet."""
        self._write("look-up", key, what)
        wanted = what or {"key": key}
        now = self._now()
        found = (item for item in self.items if all(item.get(name) == value for name, value in wanted.items()))
        return next((item["item"] for item in found if item["shown_at"] <= now), None)

    # --- its log

    @property
    def sends(self) -> int:
        """How many requests have reached it."""
        return len(self.log("request"))

    @property
    def items(self) -> list[dict[str, Any]]:
        """Everything that it has made."""
        return self.log("item")

    @property
    def looks(self) -> int:
        """How often it was asked."""
        return len(self.log("look-up"))

    def log(self, what: str) -> list[dict[str, Any]]:
        """The lines of its log of one kind: `request`, `item`, `refusal`, `closed`, `look-up`."""
        return [line for line in self._lines() if line["what"] == what]

    def _lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        # Behind the last line break there is at most a line that is being written right now.
        return [json.loads(line) for line in self.path.read_text().split("\n")[:-1]]

    def _write(self, what: str, key: str, more: dict[str, Any], *, numbered: bool = False) -> str:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            line = {"what": what, "key": key, **more}
            if numbered:
                line["item"] = f"item-{len(self.items) + 1}"
            os.write(file, json.dumps(line).encode() + b"\n")
        finally:
            os.close(file)
        return str(line.get("item"))


# --- handlers that most stories share


class LostReply(Exception):
    """What a client raises when it cannot know what became of its request: a timeout, a 5xx, a reset."""


def never(ctx: Any) -> Any:
    """A handler that must not be called."""
    raise AssertionError("this handler must not be called")


class Sender:
    """How a client speaks to a recipient that makes one item per request and can be asked by key."""

    def __init__(self, recipient: Recipient, **what: Any) -> None:
        self.recipient = recipient
        self.what = what

    def send(self, ctx: Any) -> str:
        """Send, and get the answer."""
        self.recipient.takes(ctx.key, **self.what)
        return self.recipient.makes(ctx.key, **self.what)

    def send_and_lose(self, ctx: Any) -> str:
        """Send; it is carried out, and the answer is lost."""
        self.send(ctx)
        raise LostReply("no answer")

    def lose(self, ctx: Any) -> str:
        """Send; whether it is ever carried out is open."""
        self.recipient.takes(ctx.key, **self.what)
        raise LostReply("no answer")

    def find(self, ctx: Any) -> str | None:
        """Ask by key."""
        return self.recipient.shows(ctx.key)

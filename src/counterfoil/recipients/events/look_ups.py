"""Looking a message up in its stream: by subject, from the newest backwards, by our own message id (rule V4)."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import dataclass
from typing import Any, Final

from counterfoil.errors import RecipientError
from counterfoil.outcomes import Accepted, Evidence
from counterfoil.recipients.events import replies
from counterfoil.recipients.events.connection import Connection
from counterfoil.recipients.events.facts import ACKNOWLEDGED
from counterfoil.recipients.events.message import Headers, Message

MESSAGE_ID: Final = "Nats-Msg-Id"
_NOT_FOUND: Final = 10037
# Sequences of the first stretch that is searched, and how much longer each further one is.
_STRETCH: Final = 256
_GROWTH: Final = 4


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as the stream has it."""

    sequence: int
    message_id: str | None
    message: Message
    at: str | None

    def holds(self, message: Message, key: str) -> bool:
        """Whether it is this message: the same id, the same content."""
        return self.message_id == key and self.message.digest == message.digest


class LookUp:
    """Look-ups in one stream.

    Args:
        connection: where to ask.
        stream: the stream's name.
        deadline: when nobody waits any more, on `time.monotonic()`.
    """

    def __init__(self, connection: Connection, stream: str, deadline: float) -> None:
        self._connection = connection
        self._stream = stream
        self._deadline = deadline

    async def find(self, message: Message, key: str) -> Accepted[Any] | None:
        """Find a message that was published under a key; None: the stream has none.

        Another content under the same id is not it.

        Raises:
            RecipientError: it could not be asked, which proves nothing.
        """
        newest = await self._get(last_by_subj=message.subject)
        if newest is None:
            return None
        if newest.message_id == key:
            return self._found(newest) if newest.holds(message, key) else None
        high, stretch = newest.sequence, _STRETCH
        while high > 1:
            low = max(1, high - stretch)
            found = await self._among(message, key, low=low, high=high)
            if found is not None:
                return self._found(found) if found.holds(message, key) else None
            high, stretch = low, stretch * _GROWTH
        return None

    async def _among(self, message: Message, key: str, *, low: int, high: int) -> Stored | None:
        while low < high:
            stored = await self._get(seq=low, next_by_subj=message.subject)
            if stored is None or stored.sequence >= high:
                return None
            if stored.message_id == key:
                return stored
            low = stored.sequence + 1
        return None

    async def differs(self, sequence: int, message: Message, key: str) -> bool | None:
        """Say whether what the stream has at a sequence is another message; None: it cannot be told."""
        try:
            stored = await self._get(seq=sequence)
        except RecipientError:
            return None
        return None if stored is None else not stored.holds(message, key)

    def _found(self, stored: Stored) -> Accepted[Any]:
        known = self._connection.stream
        details: dict[str, Any] = {"peer": self._connection.peer, "stored_at": stored.at}
        if known is not None:
            details["stream"] = known.details
        proof = {"stream": self._stream, "seq": stored.sequence, "duplicate": False}
        promises = () if known is None else known.promises
        evidence = Evidence("found", phase=ACKNOWLEDGED, promises=promises, details=details)
        return Accepted(proof, "reconcile", evidence)

    async def _get(self, **which: Any) -> Stored | None:
        subject = f"$JS.API.STREAM.MSG.GET.{self._stream}"
        said = await self._connection.ask(subject, json.dumps(which).encode(), self._deadline)
        if said.get("error") is not None:
            if replies.error_code(said) == _NOT_FOUND:
                return None
            raise RecipientError("the stream did not answer the look-up", code="look-up-refused")
        try:
            found = said["message"]
            headers = _headers(b64decode(found.get("hdrs", "")))
            ids = [value for name, value in headers if name.lower() == MESSAGE_ID.lower()]
            own = tuple(pair for pair in headers if not pair[0].lower().startswith("nats-"))
            message = Message(found["subject"], b64decode(found.get("data", "")), own)
            return Stored(int(found["seq"]), ids[0] if ids else None, message, found.get("time"))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RecipientError("the answer to the look-up cannot be read", code="look-up-unreadable") from None


def _headers(block: bytes) -> Headers:
    lines = block.decode("utf-8", "surrogateescape").split("\r\n")[1:]
    pairs = [line.partition(":") for line in lines if line]
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)

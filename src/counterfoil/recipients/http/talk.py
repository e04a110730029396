"""What both versions of the protocol share: what to send, what arrived, and where that ends. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from counterfoil.recipients.http.bodies import decompressed
from counterfoil.recipients.http.facts import Facts


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on an answer, in bytes: its head, its body as it comes, and decompressed."""

    head_bytes: int = 65_536
    body_bytes: int = 16_777_216
    decompressed_bytes: int = 16_777_216


class Cut(Exception):
    """There is no more of the answer: `why` is a kind of evidence."""

    def __init__(self, why: str, **details: Any) -> None:
        super().__init__(why)
        self.why = why
        self.details = details


class Unprocessed(Exception):
    """The recipient's protocol says that it did not process the request (rule H3)."""

    def __init__(self, kind: str, **details: Any) -> None:
        super().__init__(kind)
        self.kind = kind
        self.details = details


class Talk(Protocol):
    """One request and its answer in one version of the protocol."""

    @property
    def ended(self) -> bool:
        """Whether the answer is whole."""
        ...

    def feed(self, data: bytes) -> None:
        """Take in what arrived, b"" at the end of the connection.

        Raises:
            Cut, Unprocessed: there is no more of the answer.
        """
        ...

    def to_send(self) -> bytes:
        """Return what the protocol itself has to send meanwhile."""
        ...

    def finish(self) -> None:
        """Put the body into the facts, as far as it came."""
        ...


class Body:
    """The body of an answer as it comes."""

    __slots__ = ("_bytes", "_facts", "_limits", "_parts")

    def __init__(self, facts: Facts, limits: Limits) -> None:
        self._facts = facts
        self._limits = limits
        self._parts: list[bytes] = []
        self._bytes = 0

    def add(self, part: bytes) -> None:
        """Take in a part of it."""
        room = self._limits.body_bytes - self._bytes
        self._parts.append(part[:room])
        self._bytes += len(part)
        if len(part) > room:
            raise Cut("body-bound")

    def finish(self) -> None:
        """Put it into the facts."""
        facts = self._facts
        facts.content = b"".join(self._parts)
        encoding = facts.header("content-encoding")
        if encoding and facts.content:
            facts.content, whole = decompressed(facts.content, encoding, self._limits.decompressed_bytes)
            if not whole and facts.cut is None:
                facts.cut = "body-bound" if len(facts.content) >= self._limits.decompressed_bytes else "bad-encoding"

"""What one exchange came to, as plain facts: judged by `meaning`, and told as evidence."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from counterfoil.outcomes import Evidence
from counterfoil.recipients.http.headers import Headers

NOT_DISPATCHED: Final = "not-dispatched"
DISPATCHED: Final = "dispatched"
ACKNOWLEDGED: Final = "acknowledged"

Reached = Literal[
    "nothing", "resolving", "connecting", "tls", "head", "body", "sent", "answer-head", "answer-body", "done"
]


@dataclass(frozen=True, slots=True)
class Response:
    """What the recipient answered; it is recorded nowhere.

    Attributes:
        status: the status code.
        headers: by name in lower case; values of one name are joined by a comma and a space.
        content: the body, decompressed.
        complete: whether that is all of it: the connection was not lost, and no bound was met.
    """

    status: int
    headers: dict[str, str] = field(repr=False)
    content: bytes = field(repr=False)
    complete: bool = True

    def json(self) -> Any:
        """Decode the body.

        Raises:
            ValueError: it is no JSON.
        """
        return json.loads(self.content)


@dataclass(slots=True)
class Facts:
    """What is known of an exchange so far.

    Attributes:
        dispatched: the gate was won: something may have reached the recipient.
        reached: how far it got.
        sent_all: the request was offered whole.
        bytes_offered: bytes of requests that the sockets took.
        peer: the address and port that it went to.
        status: of the final answer's head, None before that.
        headers: of that head.
        content: the body as far as it came, decompressed.
        answer_bytes: how much of any answer came.
        cut: why there is no more of it (a kind of evidence), None if it is whole.
        hops: redirects that were followed.
        key: the effect key, by which somebody can ask what became of it.
        more: further facts for the evidence.
    """

    dispatched: bool = False
    reached: Reached = "nothing"
    sent_all: bool = False
    bytes_offered: int = 0
    peer: str | None = None
    status: int | None = None
    headers: Headers = ()
    content: bytes = b""
    answer_bytes: int = 0
    cut: str | None = None
    hops: int = 0
    key: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    def header(self, name: str) -> str | None:
        """Return an answer's header, None where it has none."""
        values = [value for given, value in self.headers if given.lower() == name.lower()]
        return ", ".join(values) if values else None

    def evidence(self, kind: str, phase: str, *, contract: str | None, promises: tuple[str, ...] = ()) -> Evidence:
        """Tell the facts as evidence of some kind."""
        details: dict[str, Any] = {"attempts": int(self.dispatched), "peer": self.peer, "reached": self.reached}
        if self.hops:
            details["hops"] = self.hops
        if self.cut is not None and self.status is not None:
            details["cut"] = self.cut
        return Evidence(
            kind,
            phase=phase,
            bytes_offered=self.bytes_offered,
            status=self.status,
            contract=contract,
            promises=promises,
            details=details | self.more,
        )

    @property
    def response(self) -> Response | None:
        """What the recipient answered, None if no head came."""
        if self.status is None:
            return None
        headers: dict[str, str] = {}
        for given, value in self.headers:
            name = given.lower()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return Response(self.status, headers, self.content, self.cut is None)

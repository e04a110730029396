"""What a fault peer does with one request, as data.

How much is read first is part of each move: `"nothing"` (not even the TLS handshake), `"head"`, `"all"`, or a number
of bytes of the body. A peer that closes while bytes of the client lie unread resets the connection: the kernel does.
"""

from __future__ import annotations

import json as json_text
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from counterfoil.testing.peers.seen import Request

Read: TypeAlias = Literal["nothing", "head", "all"] | int
Ending: TypeAlias = Literal["keep", "close", "reset"]
Headers: TypeAlias = Mapping[str, str] | Sequence[tuple[str, str]]

REFUSED_STREAM: Final = 7
CANCEL: Final = 8
INTERNAL_ERROR: Final = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a request.

    Args:
        status: the status code.
        body: the content; `json` instead of it is encoded, with its content type.
        json: the content as a JSON value.
        headers: header fields beside those of the framing.
        acts: whether the peer carried out the request, so that it is among its `items`; None: if the status is 2xx.
        read: how much of the request is read before answering.
        then: what becomes of the connection afterwards.
        delay_s: seconds between reading and answering.
        chunked: whether the body is sent in chunks, without its length.
        interim: statuses of interim answers that are sent first: 100, 103.
    """

    status: int = 200
    _: KW_ONLY
    body: bytes = b""
    json: Any = None
    headers: Headers = ()
    acts: bool | None = None
    read: Read = "all"
    then: Ending = "keep"
    delay_s: float = 0.0
    chunked: bool = False
    interim: Sequence[int] = ()

    @property
    def acting(self) -> bool:
        """Whether the peer carried out the request."""
        return 200 <= self.status < 300 if self.acts is None else self.acts

    def content(self) -> bytes:
        """Return the body as it is sent."""
        return self.body if self.json is None else json_text.dumps(self.json).encode()

    def fields(self) -> list[tuple[str, str]]:
        """Return the header fields, without those of the framing."""
        given = list(self.headers.items() if isinstance(self.headers, Mapping) else self.headers)
        if self.json is not None and not any(name.lower() == "content-type" for name, _ in given):
            given.insert(0, ("content-type", "application/json"))
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Refuse every connection: the port is taken and nobody listens. It is the whole script, or no part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Read, and end the connection without an answer.

    Args:
        read: how much is read first.
        reset: end with a reset instead of a close.
        acts: whether the peer carried out the request; None: if it read all of it (the reply is lost).
        interim: statuses of interim answers that are sent before: 100, 103.
    """

    read: Read = "all"
    reset: bool = False
    acts: bool | None = None
    interim: Sequence[int] = ()

    @property
    def acting(self) -> bool:
        """Whether the peer carried out the request."""
        return self.read == "all" if self.acts is None else self.acts


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Read, and say nothing until `FaultPeer.release`, or until the client goes away.

    Args:
        read: how much is read first. After a part of the body nothing more is read, so that the client's writing
            comes to a halt when the buffers between are full.
        acts: whether the peer carried out the request; None: if it read all of it.
        then: how it is answered when it is released; None: by closing.
    """

    read: Read = "all"
    acts: bool | None = None
    then: Answer | None = None

    @property
    def acting(self) -> bool:
        """Whether the peer carried out the request."""
        return self.read == "all" if self.acts is None else self.acts


@dataclass(frozen=True, slots=True)
class CutHead:
    """Answer, but end the connection within the head of the answer.

    Args:
        answer: what is cut.
        sent_bytes: how many bytes of the head are sent.
        reset: end with a reset instead of a close.
    """

    answer: Answer = Answer(200, json={"id": "item-1"})
    _: KW_ONLY
    sent_bytes: int = 20
    reset: bool = False


@dataclass(frozen=True, slots=True)
class CutBody:
    """Answer, but end the connection within the body of the answer.

    Args:
        answer: what is cut.
        sent_bytes: how many bytes of the body are sent.
        reset: end with a reset instead of a close.
    """

    answer: Answer = Answer(200, json={"id": "item-1"})
    _: KW_ONLY
    sent_bytes: int = 5
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Trickle:
    """Answer very slowly.

    Args:
        answer: what is sent.
        part: whether the head is slow already, or only the body.
        step_bytes: so many bytes at a time.
        every_s: so many seconds between them.
    """

    answer: Answer = Answer(200, json={"id": "item-1"})
    _: KW_ONLY
    part: Literal["head", "body"] = "body"
    step_bytes: int = 1
    every_s: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Bomb:
    """Answer with a small body that decompresses to a large one.

    Args:
        decoded_bytes: its size when it is decompressed.
        encoding: how it is compressed.
        status: the status of the answer.
    """

    decoded_bytes: int = 100_000_000
    encoding: Literal["gzip", "deflate"] = "gzip"
    status: int = 200


@dataclass(frozen=True, slots=True)
class GoAway:
    """HTTP/2: send GOAWAY when a request has arrived.

    Args:
        last_stream_id: the last stream that the peer says it may have processed; the first request is stream 1.
        error_code: why.
        acts: whether the peer carried out the request; None: if its stream is not above the last one.
        then: how the request is answered after that; None: the connection is closed.
    """

    last_stream_id: int = 0
    _: KW_ONLY
    error_code: int = 0
    acts: bool | None = None
    then: Answer | None = None


@dataclass(frozen=True, slots=True)
class ResetStream:
    """HTTP/2: reset the stream of a request.

    Args:
        error_code: why, for example `REFUSED_STREAM`.
        acts: whether the peer carried out the request; None: unless the stream is refused.
        read: how much of the request is read first.
    """

    error_code: int = REFUSED_STREAM
    _: KW_ONLY
    acts: bool | None = None
    read: Read = "all"

    @property
    def acting(self) -> bool:
        """Whether the peer carried out the request."""
        return self.error_code != REFUSED_STREAM if self.acts is None else self.acts


Move: TypeAlias = Answer | Refuse | Drop | Hang | CutHead | CutBody | Trickle | Bomb | GoAway | ResetStream
Script: TypeAlias = "Move | Callable[[Request], Move]"

METADATA_URL: Final = "http://169.254.169.254/latest/meta-data/"


def redirect(location: str = METADATA_URL, status: int = 307) -> Answer:
    """Redirect a request, to the address of a cloud's metadata if nothing else is said."""
    return Answer(status, headers={"location": location})


def reading(move: Move) -> Read:
    """Return how much of a request is read before a move is made."""
    match move:
        case Answer() | Drop() | Hang() | ResetStream():
            return move.read
        case CutHead() | CutBody() | Trickle():
            return move.answer.read
        case _:
            return "all"

"""The usual misbehaviour of networks and servers, by name, with what a client can know after it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from counterfoil.errors import UsageError
from counterfoil.testing.peers.moves import (
    INTERNAL_ERROR,
    Answer,
    Bomb,
    CutBody,
    CutHead,
    Drop,
    GoAway,
    Hang,
    Refuse,
    ResetStream,
    Script,
    Trickle,
    redirect,
)

Known = Literal["not sent", "unknown", "refused", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to misbehave.

    Args:
        name: a stable slug.
        script: what the peer does, at each request.
        known: what a client can know then: `not sent`, `refused` (the peer's answer proves that it did nothing),
            `done`, or `unknown`.
        says: what the peer does, in a few words.
    """

    name: str
    script: Script | Sequence[Script]
    known: Known
    says: str


_LIMITED: Final = Answer(429, headers={"retry-after": "0"})
_ERROR: Final = Answer(200, json={"ok": False, "error": "internal_error"}, acts=False)

CASES: Final = (
    Case(name="plain", script=Answer(200), known="done", says="answers 200"),
    Case(name="refuse", script=Refuse(), known="not sent", says="refuses the connection"),
    Case(
        name="reset-on-accept",
        script=Drop(read="nothing", reset=True),
        known="unknown",
        says="resets the connection at once",
    ),
    Case(name="read-and-drop", script=Drop(), known="unknown", says="reads the request, acts, and hangs up"),
    Case(name="read-and-reset", script=Drop(reset=True), known="unknown", says="reads the request, acts, and resets"),
    Case(name="1xx-then-close", script=Drop(interim=(100,)), known="unknown", says="answers 100, acts, and hangs up"),
    Case(name="truncated-head", script=CutHead(), known="unknown", says="acts, and cuts its answer within the head"),
    Case(name="truncated-body", script=CutBody(), known="unknown", says="acts, and cuts its answer within the body"),
    Case(
        name="early-answer",
        script=Answer(413, read="head", then="reset"),
        known="refused",
        says="answers 413 before the body is read, and resets",
    ),
    Case(name="hang", script=Hang(), known="unknown", says="reads the request, acts, and says nothing"),
    Case(name="trickle", script=Trickle(every_s=0.1), known="done", says="answers 200, ten bytes a second"),
    Case(name="bomb", script=Bomb(), known="done", says="answers 200, 100 kB that decompress to 100 MB"),
    Case(name="500", script=Answer(500, acts=True), known="unknown", says="acts, and answers 500"),
    Case(name="503", script=Answer(503, acts=True), known="unknown", says="acts, and answers 503"),
    Case(name="429", script=_LIMITED, known="refused", says="answers 429 with Retry-After: 0"),
    Case(name="200-with-error", script=_ERROR, known="refused", says="answers 200 with an error in the body"),
    Case(
        name="redirect",
        script=(redirect("/moved"), Answer(200)),
        known="refused",
        says="answers 307, to another path of its own",
    ),
)

HTTP2_CASES: Final = (
    Case(name="refused-stream", script=ResetStream(), known="refused", says="resets the stream: REFUSED_STREAM"),
    Case(
        name="reset-stream",
        script=ResetStream(INTERNAL_ERROR),
        known="unknown",
        says="acts, and resets the stream: INTERNAL_ERROR",
    ),
    Case(
        name="goaway-below", script=GoAway(0), known="refused", says="goes away, naming a stream before the request's"
    ),
    Case(
        name="goaway-above", script=GoAway(1), known="unknown", says="acts, and goes away, naming the request's stream"
    ),
)

SCRIPTS: Final = {case.name: case.script for case in (*CASES, *HTTP2_CASES)}


def chosen(names: Collection[str] = (), *, http2: bool = False) -> list[Case]:
    """Return the cases of these names, or all of HTTP/1.1 (and of HTTP/2).

    Raises:
        UsageError: there is no case of a name.
    """
    known = {case.name: case for case in (*CASES, *HTTP2_CASES)}
    if unknown := sorted(set(names) - set(known)):
        raise UsageError(f"there is no case {unknown[0]!r}", hint=f"there are {', '.join(known)}")
    if names:
        return [known[name] for name in names]
    return [*CASES, *HTTP2_CASES] if http2 else list(CASES)

"""What is known of a staged intent between two attempts: pure data, carried from claim to claim.

A claim is counted when it is made, before anybody knows what comes of it, so that an intent whose handler kills
its process is counted too. What was claimed and provably not sent is requeued as it stands; what may have been
sent is `unsure` until somebody knows, and whatever is unsure is never sent again unless its recipient
deduplicates by key.
"""

from __future__ import annotations

from typing import Final

import msgspec

SEND: Final = "send"
LOOK: Final = "look"


class Standing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What earlier attempts of an intent came to.

    Args:
        claims: times that it was claimed for sending; claims given back before sending (drained) do not count.
        revoked: of these, how many ended with their owner before anything was sent.
        kills: sends whose owner was gone when they should have ended.
        looks: times that it was claimed for asking the recipient.
        sends: times that it may have been sent.
        unsure: it may have been sent, and nobody knows how that ended.
        first_sent: when the send-right of the first of the sends with the present key was taken, in seconds since 1970
            on the database's clock.
        ended: when the last send ended, or its owner was found gone.
        round: which of its keys it uses: the next one after an attempt that provably failed.
        began: when it was first claimed.
        asked: when the recipient was first asked about the present send.
    """

    claims: int = 0
    revoked: int = 0
    kills: int = 0
    looks: int = 0
    sends: int = 0
    unsure: bool = False
    first_sent: float | None = None
    ended: float | None = None
    round: int = 1
    began: float | None = None
    asked: float | None = None


FRESH: Final = Standing()
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Standing)


def encode(standing: Standing) -> bytes | None:
    """Encode for the store; None where there is nothing to say yet."""
    return None if standing == FRESH else _encoder.encode(standing)


def decode(body: bytes | str | None) -> Standing:
    """Decode what `encode` made."""
    return FRESH if body is None else _decoder.decode(body)


def claimed(standing: Standing, kind: str, *, now: float) -> Standing:
    """Count a claim."""
    if kind == LOOK:
        asked = now if standing.asked is None else standing.asked
        return msgspec.structs.replace(standing, looks=standing.looks + 1, asked=asked)
    began = now if standing.began is None else standing.began
    return msgspec.structs.replace(standing, claims=standing.claims + 1, began=began)


def granted(standing: Standing, *, now: float) -> Standing:
    """Note that it may have been sent from now on."""
    first = now if standing.first_sent is None else standing.first_sent
    return msgspec.structs.replace(standing, sends=standing.sends + 1, first_sent=first)


def drained(standing: Standing, kind: str) -> Standing:
    """Give back a claim of which nothing has come: it does not count."""
    if kind == LOOK:
        return msgspec.structs.replace(standing, looks=standing.looks - 1)
    return msgspec.structs.replace(standing, claims=standing.claims - 1)


def orphaned(standing: Standing, kind: str, *, sent_at: float | None, now: float) -> tuple[str, Standing]:
    """Say what a claim whose owner is gone leaves behind: what to do with the intent next, and its standing.

    Args:
        standing: as it was when it was claimed.
        kind: what it was claimed for.
        sent_at: when its owner took the send-right; None: recovery has revoked it, nothing was and nothing will
            be sent under that claim.
        now: on the database's clock.
    """
    if kind == LOOK:
        return LOOK, standing
    if sent_at is None:
        return SEND, msgspec.structs.replace(standing, revoked=standing.revoked + 1)
    sent = granted(standing, now=sent_at)
    return LOOK, msgspec.structs.replace(sent, kills=sent.kills + 1, unsure=True, ended=now, asked=None, looks=0)

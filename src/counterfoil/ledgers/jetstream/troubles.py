"""What an answer of JetStream means for the caller: was it recorded, may it be tried again, who mends it."""

from __future__ import annotations

from typing import Final

import msgspec

from counterfoil.errors import CommitUnknown, LedgerReadOnly, LedgerUnavailable, UsageError

# Somebody else was first; 10164 is the same where the server may not say at which sequence.
_TAKEN: Final = frozenset({10071, 10164})
_TOO_LARGE: Final = 10054
NOT_FOUND: Final = 10059
NAME_IN_USE: Final = 10058
# The server refuses before it stores anything: not found, another stream than expected, no room, JetStream is off. Not
# among them: 10023, insufficient resources, which a leader also says of a message that its followers have stored.
_DEFINITE: Final = frozenset({NOT_FOUND, 10060, 10047, 10076, 10039, _TOO_LARGE})
_NO_RESPONDERS: Final = "503"


class Said(msgspec.Struct, frozen=True):
    """An answer to a publish, or why there is none.

    Args:
        sequence: where the message is, 0 if it is not there.
        taken: the subject has another last message than expected.
        unknown: the message may be there, or may still come.
        text: what was wrong.
        too_large: no server takes such a message.
        since: messages behind this sequence, up to the message's, are ours and end nothing; -1: not known.
    """

    sequence: int = 0
    taken: bool = False
    unknown: bool = False
    text: str = ""
    too_large: bool = False
    since: int = -1


class _Error(msgspec.Struct, frozen=True):
    err_code: int = 0
    description: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What every answer of the JetStream API has."""

    error: _Error | None = None


class _PubAck(msgspec.Struct, frozen=True):
    stream: str = ""
    seq: int = 0
    error: _Error | None = None


_puback: Final = msgspec.json.Decoder(_PubAck)


def said(data: bytes, *, status: str | None, stream: str) -> Said:
    """Understand an answer to a publish.

    Args:
        data: the payload.
        status: the status line's code, if there is one.
        stream: whose answer it must be.
    """
    if status == _NO_RESPONDERS:
        return Said(text="no stream answers: there is none, or it has no leader")
    try:
        ack = _puback.decode(data)
    except msgspec.MsgspecError:
        return Said(unknown=True, text="the answer is none of JetStream's")
    if ack.error is not None:
        code = ack.error.err_code
        text = f"{ack.error.description} [{code}]"
        return Said(
            taken=code in _TAKEN, unknown=code not in _TAKEN | _DEFINITE, text=text, too_large=code == _TOO_LARGE
        )
    if ack.stream != stream or ack.seq < 1:
        return Said(unknown=True, text=f"another stream answered: {ack.stream!r}")
    return Said(sequence=ack.seq)


def unavailable(text: str) -> LedgerUnavailable:
    """Make the error for what was definitely not recorded, or only looked at."""
    return LedgerUnavailable(
        f"JetStream: {text}",
        code="ledger-io",
        hint="check that the servers run, that a majority of the stream's replicas is there, and the URL",
        effect_ran="no",
    )


def unknown(text: str) -> CommitUnknown:
    """Make the error for what may be recorded."""
    return CommitUnknown(f"JetStream did not say how the append ended: {text}")


def too_large(size_bytes: int) -> UsageError:
    """Make the error for an entry that no server takes."""
    return UsageError(
        f"it cannot be recorded: {size_bytes} bytes are more than the NATS server takes in one message",
        hint="raise max_payload, or record a reference instead",
    )


def went_back(reason: str) -> LedgerReadOnly:
    """Make the error for a ledger that is not what it was."""
    return LedgerReadOnly(
        f"this ledger went back in time: {reason}",
        code="ledger-restored",
        hint="look at what was lost, then run `counterfoil accept-restore --by YOU --reason WHY`",
    )

"""Evidence: proofs checked, late facts kept, and evidence that comes by another way settled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from counterfoil.effects.record import record
from counterfoil.effects.scope import Scope, Verifier
from counterfoil.errors import EffectRan, EffectUnresolved, LedgerError, NotSerializable, UsageError
from counterfoil.outcomes import Accepted
from counterfoil.protocol import codec, records, slots, states
from counterfoil.protocol.history import Attempt, evidence_body, look
from counterfoil.protocol.records import Draft
from counterfoil.protocol.requests import Call, Raised, Read, Returned


def proof_of(encode: Callable[[Any], bytes], value: Any) -> bytes:
    """Encode a proof.

    Raises:
        NotSerializable: it is not a lossless JSON value, or is over 65,536 bytes.
    """
    proof = encode(value)
    if len(proof) > codec.PROOF_BYTES_MAX:
        raise NotSerializable(
            f"the proof has {len(proof)} bytes of JSON, {codec.PROOF_BYTES_MAX} at most",
            hint="a proof is the recipient's name for the effect, not its content",
        )
    return proof


def acknowledged(value: Any) -> tuple[Any, codec.EvidenceBody | None]:
    """Take apart what a handler returned: a proof, or an `Accepted` that carries its own evidence (rule O6)."""
    if isinstance(value, Accepted):
        return value.proof, evidence_body(value.evidence)
    return value, None


async def verified(
    scope: Scope, name: str, attempt: Attempt, *, verifier: Verifier | None, proof: bytes, ran: EffectRan
) -> bool:
    """Check a proof with the caller's `verify`; without one it holds. Its context has the attempt's key.

    Raises:
        EffectUnresolved: `verify` raised or did not end in time (`reconcile-failed`, `reconcile-timeout`).
    """
    if verifier is None:
        return True
    try:
        value = verifier.decode(proof)
    except Exception as error:
        raise EffectUnresolved(
            f"effect {name!r} is unresolved: a proof cannot be decoded into the type that the call names",
            reason="proof-rejected",
            name=name,
            effect_ran=ran,
            hint="it may have been sent: do not send it again; name a type that fits, and call again",
        ) from error
    key = scope.key(name, attempt.number, keep=attempt.body.keep_key)
    reply = await Call(verifier.check, key=key, attempt=attempt.number, timeout_s=verifier.timeout_s, proof=(value,))
    if isinstance(reply, Returned):
        return bool(reply.value)
    raised = reply.error if isinstance(reply, Raised) else None
    if isinstance(reply, Raised) and reply.interrupts:
        raise reply.error
    raise EffectUnresolved(
        f"effect {name!r} is unresolved: its verify "
        + ("did not end in time" if raised is None else f"raised {type(raised).__name__}"),
        reason="reconcile-timeout" if raised is None else "reconcile-failed",
        name=name,
        effect_ran=ran,
        hint="it may have been sent: do not send it again; mend verify and call again",
    ) from raised


async def refuse(scope: Scope, name: str, number: int, *, via: str, value: Any, proof: bytes | None = None) -> None:
    """Keep the digest of what was returned and refused, as late evidence."""
    seen = proof if proof is not None else _bytes_of(value)
    late = codec.LateBody(
        attempt=number,
        claims="refused",
        via=via,
        digest=codec.digest(seen),
        evidence=codec.EvidenceBody(kind="refused-proof", details={"type": type(value).__name__}),
    )
    try:
        await keep_late(scope, name, late)
    except LedgerError:
        # Only a note is lost; the effect stays unresolved either way.
        return


def _bytes_of(value: Any) -> bytes:
    try:
        return codec.encode(value, what="the proof")
    except NotSerializable:
        pass
    try:
        return repr(value).encode("utf-8", "backslashreplace")
    except Exception:  # noqa: BLE001 - a repr of the user's may raise anything
        return type(value).__name__.encode()


async def keep_late(scope: Scope, name: str, late: codec.LateBody) -> None:
    """Keep a fact that came after the outcome, unless the same was there already.

    Evidence of acceptance also competes for the send-right of whatever could still be sent: the next attempt,
    and the name under which a person allowed a repeat.
    """
    body = codec.body_of(late)
    while True:
        seen = look(scope.history, name)
        if any(record.body == body for record in seen.notes):
            return
        if late.claims == "accepted" and not late.pending:
            if seen.state not in states.FINAL:
                await close(name, len(seen.attempts) + 1, late)
            if seen.decision is not None and seen.decision[1].new_name is not None:
                await close(seen.decision[1].new_name, 1, late)
        slot = slots.note(name, len(seen.notes) + 1)
        filled = await record(Draft(slot=slot, kind=records.NOTE, phase="late", body=body))
        if filled.ours:
            return
        # Another note came first, and if it is a decision it may name something that could still be sent.
        await Read()


async def close(name: str, number: int, late: codec.LateBody) -> None:
    """Fill an intent's slot with evidence of acceptance, so that nobody takes the send-right any more."""
    body = codec.OutcomeBody(via="evidence", proof=late.proof, evidence=late.evidence, source=late.source)
    slot = slots.intent(name, number)
    await record(Draft(slot=slot, kind=records.EFFECT, phase="closed", body=codec.body_of(body)))


async def accepted_before(scope: Scope, name: str) -> bool:
    """Say whether evidence came that an earlier attempt was accepted, while the present one was under way.

    Then a failure of the present one is not how all of them ended (rule O3): it is recorded as not final, and
    what closed the next attempt is the outcome.
    """
    await Read()
    return look(scope.history, name).closed is not None


async def settle(scope: Scope, name: str, proof: bytes, *, key: str, source: str, verifier: Verifier | None) -> bool:
    """Record evidence that came by another way, for the attempt with this key.

    Returns:
        True if it became the outcome, False if it was kept as late evidence, or until a call of this effect
        brings the `verify` that it was made with.

    Raises:
        UsageError: no attempt has this key; nothing was recorded.
        EffectUnresolved: `verify` refused it (`proof-rejected`) or raised.
    """
    await Read()
    attempt = _attempt_with(scope, name, key)
    if not await verified(scope, name, attempt, verifier=verifier, proof=proof, ran="unknown"):
        await refuse(scope, name, attempt.number, via="evidence", value=codec.decode(proof), proof=proof)
        raise EffectUnresolved(
            f"verify refused the evidence for effect {name!r}; it was kept as late evidence only",
            reason="proof-rejected",
            name=name,
            effect_ran="unknown",
        )
    late = codec.LateBody(
        attempt=attempt.number,
        claims="accepted",
        via="evidence",
        proof=msgspec.Raw(proof),
        source=source,
        pending=verifier is None and attempt.body.verified,
    )
    if attempt.outcome is None and not late.pending:
        body = codec.OutcomeBody(via="evidence", proof=msgspec.Raw(proof), source=source)
        draft = Draft(
            slot=slots.outcome(name, attempt.number),
            kind=records.EFFECT,
            phase="accepted",
            body=codec.body_of(body),
        )
        if (await record(draft)).ours:
            return True
        await Read()
    await keep_late(scope, name, late)
    return False


def _attempt_with(scope: Scope, name: str, key: str) -> Attempt:
    # The latest first: where attempts share a key, it is the one that may still be open.
    for attempt in reversed(look(scope.history, name).attempts):
        if scope.key(name, attempt.number, keep=attempt.body.keep_key) == key:
            return attempt
    raise UsageError(
        f"no attempt of effect {name!r} of run {scope.run!r} has the key {key!r}; nothing was recorded",
        hint="the key is the one that the context gave to `run` (effects() shows it as effect_key)",
        code="no-such-attempt",
    )

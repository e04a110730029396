"""What people do with an outbox: each act has a reason and a name, is recorded, and refuses a stale version."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from counterfoil.errors import UsageError
from counterfoil.outbox import acts
from counterfoil.outbox.receipts import SETTLED, STATES, Receipt, receipt_of
from counterfoil.ports.outbox_store import Act, OutboxView, Story
from counterfoil.protocol import codec, keys
from counterfoil.runtime import arguments

Scoped = Literal["pause", "resume", "drain"]
LIMIT_MAX: Final = 10_000


def said(reason: Any, by: Any) -> None:
    """Check who acts, and why.

    Raises:
        UsageError: one of them is missing.
    """
    for value, what in ((reason, "reason"), (by, "by")):
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"an act needs `{what}`")


def scoped(view: OutboxView, name: Scoped, recipient: str | None, *, reason: str, by: str) -> None:
    """Pause, resume or drain the whole outbox or one recipient."""
    said(reason, by)
    scope = "*" if recipient is None else f"recipient:{keys.name(recipient, 'recipient')}"
    view.act(Act(name=name, scope=scope, by=by, reason=reason), lambda _: None)


def redrive(view: OutboxView, effect_id: str, *, reason: str, by: str, expect_version: int) -> None:
    """Let an intent be sent again that provably was not sent, or failed."""
    said(reason, by)
    view.act(_act("redrive", effect_id, by=by, reason=reason, expect_version=expect_version), acts.redrive)


def reconcile(view: OutboxView, effect_id: str, *, reason: str, by: str, expect_version: int) -> None:
    """Let the recipient be asked again."""
    said(reason, by)
    view.act(_act("reconcile", effect_id, by=by, reason=reason, expect_version=expect_version), acts.reconcile)


def decide(view: OutboxView, effect_id: str, **given: Any) -> None:
    """Record what a person found out."""
    verdict = arguments.verdict(**given)
    body = codec.DecisionBody(
        happened=verdict.happened,
        reason=verdict.reason,
        by=verdict.by,
        seen_version=verdict.expect_version,
        proof=msgspec.Raw(verdict.proof),
        new_name=verdict.new_name,
    )
    act = Act(
        name="decide",
        scope=effect_id,
        by=verdict.by,
        reason=verdict.reason,
        expect_version=verdict.expect_version,
        body=codec.body_of(body),
    )
    view.act(act, lambda story: acts.decide(story, happened=verdict.happened))


def listed(view: OutboxView, *, state: str | None, limit: int) -> list[Receipt]:
    """Return receipts: of one state, or of all that has not ended."""
    if state is not None and state not in STATES:
        raise UsageError(f"{state!r} is no state of an intent", hint=f"it is one of {', '.join(STATES)}")
    limited(limit)
    ended = SETTLED - {"needs-operator", "quarantined"}
    found = view.ended(state, limit=limit) if state in ended else view.waiting(state=state, limit=limit)
    stories: list[Story | None] = [view.story(effect_id) for effect_id in found]
    receipts = [receipt_of(story) for story in stories if story is not None]
    return [receipt for receipt in receipts if state is None or receipt.state == state]


def limited(limit: int) -> None:
    """Check how many intents are asked for at most."""
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise UsageError(f"limit is an int from 1 to {LIMIT_MAX}, not {limit!r}")


def _act(name: str, effect_id: str, *, by: str, reason: str, expect_version: Any) -> Act:
    if type(expect_version) is not int:
        raise UsageError("expect_version is the version that the receipt showed, an int")
    return Act(name=name, scope=effect_id, by=by, reason=reason, expect_version=expect_version)

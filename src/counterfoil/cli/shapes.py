"""The JSON objects that `--json` writes; their names and meanings are stable."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from counterfoil.outbox.receipts import Receipt
from counterfoil.outcomes import Accepted, Decision, Evidence, Failed, Outcome
from counterfoil.ports.outbox_store import Story
from counterfoil.protocol import codec
from counterfoil.protocol.exported import hidden, redact
from counterfoil.protocol.legality import Finding
from counterfoil.runtime.views import EffectView, RecordView, RunView


def run(view: RunView) -> dict[str, Any]:
    """Describe a run: `run`, `state` (`open`, `finished`, `pruned`), `began`, `finished`."""
    return {"run": view.run_id, "state": view.state, "began": view.began, "finished": view.finished}


def record(view: RecordView, *, shown: bool) -> dict[str, Any]:
    """Describe one record of a timeline."""
    found = asdict(view)
    found["body"] = redact(view.body, shown=shown)
    return found


def effect(view: EffectView, *, shown: bool) -> dict[str, Any]:
    """Describe an effect; `outcome` and `decision` are null where there is none."""
    return {
        "run": view.run_id,
        "effect": view.name,
        "attempt": view.attempt,
        "state": view.state,
        "since": view.since,
        "age_s": view.age_s,
        "version": view.version,
        "key": view.effect_key,
        "outcome": None if view.outcome is None else outcome(view.outcome, shown=shown),
        "late_evidence": [redact(asdict(late), shown=shown) for late in view.late_evidence],
        "decision": None if view.decision is None else decision(view.decision, shown=shown),
    }


def outcome(found: Outcome[Any], *, shown: bool) -> dict[str, Any]:
    """Describe an outcome: `class` and `evidence`, and what its class has."""
    said: dict[str, Any] = {"class": type(found).__name__.lower(), "evidence": evidence(found.evidence)}
    if isinstance(found, Accepted):
        said |= {"via": found.via, "proof": found.proof if shown else hidden(found.proof)}
    elif isinstance(found, Failed):
        said["retryable"] = found.retryable
    return said


def evidence(found: Evidence) -> dict[str, Any]:
    """Describe evidence, without what it does not say."""
    return {name: value for name, value in asdict(found).items() if value not in (None, ())}


def decision(found: Decision, *, shown: bool) -> dict[str, Any]:
    """Describe a decision."""
    return redact(asdict(found), shown=shown)  # type: ignore[no-any-return]


def receipt(found: Receipt, *, shown: bool) -> dict[str, Any]:
    """Describe an intent; `outcome` and `decision` are null where there is none."""
    return {
        "key": found.key,
        "effect_id": found.effect_id,
        "state": found.state,
        "reason": found.reason,
        "attempts": found.attempts,
        "since": found.since,
        "due": found.due,
        "version": found.version,
        "outcome": None if found.outcome is None else outcome(found.outcome, shown=shown),
        "late_evidence": [redact(asdict(late), shown=shown) for late in found.late_evidence],
        "decision": None if found.decision is None else decision(found.decision, shown=shown),
    }


def story(found: Receipt, story: Story, *, shown: bool) -> dict[str, Any]:
    """Describe an intent with all that is on record about it."""
    arguments = None if story.body is None else codec.decode(story.body)["arguments"]
    return {
        **receipt(found, shown=shown),
        "recipient": story.recipient,
        "operation": story.operation,
        "arguments": arguments if shown or arguments is None else hidden(arguments),
        "lane": story.lane,
        "place": story.place,
        "staged_at": story.staged_at,
        "not_before": story.not_before,
        "expires_at": story.expires_at,
        "records": [
            {
                "attempt": row.attempt,
                "kind": row.kind,
                "owner": row.owner,
                "at": row.at,
                "right": row.right,
                "phase": row.phase,
                "ended": row.ended,
            }
            for row in story.attempts
        ],
        "acts": [{"act": name, "by": by, "reason": why, "at": at} for name, by, why, at, _ in story.acts],
    }


def finding(found: Finding) -> dict[str, Any]:
    """Describe a finding of the history checker."""
    return asdict(found)

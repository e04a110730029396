"""What an outbox and a dispatcher look like at one moment: plain numbers, for metrics of whatever kind."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.ports.outbox_store import OutboxView


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSnapshot:
    """An outbox, whoever dispatches it.

    Args:
        waiting: recipient to state to how many intents; what has ended is not in it.
        lag_s: how long the oldest one that is due has been due, 0.0 where nothing is.
        uncertain: how many may have been sent and wait for a person.
        oldest_uncertain_s: how long the oldest of these has, None where there is none.
        stuck_lanes: how many lanes stand still.
        paused: what is paused: `*`, or `recipient:<name>`.
    """

    waiting: dict[str, dict[str, int]]
    lag_s: float
    uncertain: int
    oldest_uncertain_s: float | None
    stuck_lanes: int
    paused: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherSnapshot:
    """One dispatcher.

    Args:
        ended: how many of its claims ended in which way since it was opened: an outcome, or `released` (asked about
            next), `looked`, `parked` (left to a person), `drained` (given back), `late` (others had ended it before).
        in_hand: claims that have not ended.
        running: handlers that have not returned, those that nobody waits for any more included.
        lag_s: how long the oldest one that is due and known here had been due when it last looked around, which
            it does each second.
        paused: what is paused: `*`, or `recipient:<name>`.
    """

    ended: dict[str, int]
    in_hand: int
    running: int
    lag_s: float
    paused: tuple[str, ...]


def snapshot_of(view: OutboxView) -> OutboxSnapshot:
    """Look at an outbox."""
    waiting: dict[str, dict[str, int]] = {}
    for recipient, state, count, _ in view.depth():
        states = waiting.setdefault(recipient, {})
        states[state] = states.get(state, 0) + count
    ages = view.ages()
    return OutboxSnapshot(
        waiting=waiting,
        lag_s=ages.lag_s,
        uncertain=ages.uncertain,
        oldest_uncertain_s=ages.oldest_uncertain_s,
        stuck_lanes=sum(stuck is not None for _, _, stuck, _, _ in view.lanes()),
        paused=ages.paused,
    )

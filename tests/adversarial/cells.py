"""The adversarial matrix: what follows where something happens to an operation in one of its phases.

Each kind of recipient has a module with `PHASES`, `expected(phase, cause)`, which is a row of the table in the docs,
and `play`, which makes it happen. Permits and connections always come back, so no cell says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CAUSES: Final = ("cancel", "deadline", "reset", "revocation", "shutdown")
KILL: Final = "SIGKILL"
# What the evidence is called before the dispatch line and behind it, where it is the same for every kind.
_KINDS: Final = {
    "cancel": ("cancelled", "cancelled"),
    "deadline": ("deadline-before-dispatch", "deadline"),
    "revocation": ("revoked", "revoked"),
    "shutdown": ("shutdown", "shutdown"),
}


@dataclass(frozen=True)
class Cell:
    """What must follow.

    Attributes:
        told: what the caller may be told: class, and what its evidence is called; nothing where its process is killed.
        peer: how often the recipient may have been reached by it: bytes on their way may still arrive.
        journal: its state in the ledger; `unresolved`: an intent that has no outcome.
        restart: what another life makes of it, once it was an effect: classes of its outcome.
    """

    told: frozenset[tuple[str, str]]
    peer: frozenset[int]
    journal: str
    restart: frozenset[str]


def cell(cause: str, *, before: bool, peer: frozenset[int], on_reset: frozenset[str], restart: frozenset[str]) -> Cell:
    """Make the cell of an operation that is one exchange.

    Args:
        cause: what happens.
        before: whether it happens before the dispatch line.
        peer: how often the recipient may have been reached.
        on_reset: what the evidence of a reset is called.
        restart: what a restart makes of it.
    """
    if cause == KILL:
        return Cell(frozenset(), peer, "unresolved", restart)
    outcome = "Rejected" if before else "Uncertain"
    kinds = on_reset if cause == "reset" else {_KINDS[cause][0 if before else 1]}
    # What is recorded is final: another life is told the same.
    return Cell(frozenset((outcome, kind) for kind in kinds), peer, outcome.lower(), frozenset({outcome}))


__all__ = ["CAUSES", "KILL", "Cell", "cell"]

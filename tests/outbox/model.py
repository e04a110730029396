"""One intent, two dispatchers and a recipient, small enough to be explored in full.

The flows are the real ones; the store is a dictionary with the same two keys that are filled once. A path is a list of
choices: who steps next, how a handler ends, who crashes, who is taken for gone although it lives, when a request lands.
Paths are run anew from their choices, since coroutines cannot be copied, and cut where a state was seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from counterfoil.outbox.dispatch import send
from counterfoil.outbox.reconcile import look
from counterfoil.outbox.requests import Ask, Chance, Clock, Encode, Expire, Finish, Grant, Note, Perform, Unsent, Verify
from counterfoil.outbox.terms import Terms
from counterfoil.outcomes import Evidence, Failed, Rejected
from counterfoil.ports.outbox_store import Claim, Ending
from counterfoil.protocol import standings
from counterfoil.protocol.requests import Raised, Returned
from counterfoil.protocol.standings import LOOK, SEND, Standing

RESTING = ("needs-operator", "quarantined", "blocked")


class Cut(Exception):
    """This state was seen before."""


class Wrong(AssertionError):
    """A rule is broken on this path."""


@dataclass
class Life:
    """A dispatcher: its claim's flow, and what it was answered so far."""

    name: str
    claim: Claim | None = None
    flow: Coroutine[Any, Any, None] | None = None
    request: Any = None
    answers: list[Any] = field(default_factory=list)
    crashed: bool = False
    fenced: bool = False


@dataclass
class Limits:
    """How much may go wrong on one path."""

    crashes: int = 1
    fences: int = 1
    claims: int = 4


class World:
    """One path: a choice function picks among what may happen next.

    Args:
        terms: of the one operation.
        policy: what the intent is narrowed to.
        limits: how much may go wrong.
        pick: returns an index below the number of choices; it may ask for the state, and raise `Cut`.
    """

    def __init__(
        self, terms: Terms, *, policy: str | None, limits: Limits, pick: Callable[[int, Callable[[], Any]], int]
    ) -> None:
        self.terms, self.policy, self.limits, self.pick = terms, policy, limits, pick
        self.lives = [Life("a"), Life("b")]
        self.ready: tuple[str, str, Standing] | None = (SEND, "pending", Standing())
        self.attempts: list[tuple[str, str, Standing]] = []
        self.rights: dict[int, str] = {}
        self.ends: dict[int, tuple[str, bool]] = {}
        self.final: str | None = None
        self.late: list[str] = []
        self.flying: list[str] = []
        self.kept: set[str] = set()
        self.sends: list[str] = []
        self.now = 100.0

    # --- choosing

    def run(self) -> None:
        """Go on until nothing can happen."""
        while moves := self.moves():
            moves[self.pick(len(moves), self.state)]()
            self.check()
        self.check_end()

    def moves(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        for life in self.lives:
            if life.crashed:
                continue
            if life.flow is not None:
                found += self._steps(life)
                if self.limits.crashes:
                    found.append(lambda life=life: self._crash(life))  # type: ignore[misc]
                if self.limits.fences and not life.fenced:
                    found.append(lambda life=life: self._fence(life))  # type: ignore[misc]
            elif not life.fenced and self.ready and self.ready[1] not in RESTING and self.limits.claims:
                found.append(lambda life=life: self._claim(life))  # type: ignore[misc]
        found += [lambda key=key: self._land(key) for key in dict.fromkeys(self.flying)]  # type: ignore[misc]
        gone = any(life.crashed or life.fenced for life in self.lives)
        if gone and any(self._open(number) and self._is_gone(number) for number in range(len(self.attempts))):
            found.append(self._recover)
        return found

    def state(self) -> Any:
        lives = tuple(
            (e.crashed, e.fenced, e.claim and e.claim.attempt, tuple(repr(answer)[:80] for answer in e.answers))
            for e in self.lives
        )
        return (
            lives,
            self.ready,
            tuple(self.attempts),
            tuple(sorted(self.rights.items())),
            tuple(sorted(self.ends.items())),
            self.final,
            tuple(self.late),
            tuple(self.flying),
            frozenset(self.kept),
            tuple(self.sends),
            (self.limits.crashes, self.limits.fences, self.limits.claims),
        )

    # --- what may happen

    def _claim(self, life: Life) -> None:
        assert self.ready is not None
        kind, _, standing = self.ready
        self.ready = None
        self.limits.claims -= 1
        counted = standings.claimed(standing, kind, now=self.now)
        self.attempts.append((life.name, kind, counted))
        life.claim = Claim(
            attempt=len(self.attempts) - 1,
            intent=1,
            owner=life.name,
            kind=kind,
            effect_id="id",
            namespace="n",
            key="k",
            recipient="r",
            operation="o",
            format=1,
            body=b"",
            standing=counted,
            policy=self.policy,
        )
        life.flow = (send if kind == SEND else look)(life.claim, self.terms)
        life.answers = []
        self._answer(life, None)

    def _answer(self, life: Life, answer: Any) -> None:
        assert life.flow is not None
        while True:
            life.answers.append(answer)
            try:
                request = life.flow.send(answer)
            except StopIteration:
                life.flow = life.request = None
                life.answers = []
                return
            if isinstance(request, Clock):
                answer = self.now
            elif isinstance(request, Chance):
                answer = 0.5
            elif isinstance(request, Encode):
                answer = b'"proof"'
            elif isinstance(request, Verify):
                answer = Returned(value=True)
            elif isinstance(request, Note):
                answer = None
            else:
                life.request = request
                return

    def _steps(self, life: Life) -> list[Callable[[], None]]:
        request = life.request
        if isinstance(request, Grant):
            return [lambda: self._answer(life, self._grant(life))]
        if isinstance(request, Expire):
            return [lambda: self._answer(life, False)]
        if isinstance(request, Finish):
            return [lambda: self._answer(life, self._finish(life, request.ending))]
        if isinstance(request, Perform):
            return [lambda how=how: self._perform(life, request, how) for how in PERFORMED]  # type: ignore[misc]
        assert isinstance(request, Ask)
        answers: list[Any] = [Returned(value="proof" if request.key in self.kept else None), Raised(OSError())]
        return [lambda answer=answer: self._answer(life, answer) for answer in answers]  # type: ignore[misc]

    def _perform(self, life: Life, request: Perform, how: str) -> None:
        if how == "too-late":
            self._answer(life, Unsent())
            return
        if how == "never-dispatched":
            self._answer(life, Raised(Rejected(Evidence("connect-failed", phase="not-dispatched"))))
            return
        self.sends.append(request.key)
        if how == "refused":
            self._answer(life, Raised(Failed(Evidence("status", status=422))))
            return
        # It lands at once, later, or never.
        if how in ("accepted", "landed-and-lost"):
            self.kept.add(request.key)
        elif how == "flying-and-lost":
            self.flying.append(request.key)
        self._answer(life, Returned(value="proof") if how == "accepted" else Raised(OSError()))

    def _crash(self, life: Life) -> None:
        # In the middle of a send: it may have left already, and land or not.
        self.limits.crashes -= 1
        if isinstance(life.request, Perform):
            self.sends.append(life.request.key)
            self.flying.append(life.request.key)
        assert life.flow is not None
        life.flow.close()
        life.flow, life.crashed, life.answers = None, True, []

    def _fence(self, life: Life) -> None:
        self.limits.fences -= 1
        life.fenced = True

    def _land(self, key: str) -> None:
        self.flying.remove(key)
        self.kept.add(key)

    # --- the store

    def _open(self, number: int) -> bool:
        return number not in self.ends

    def _is_gone(self, number: int) -> bool:
        owner = self.lives[self.attempts[number][0] == "b"]
        return owner.crashed or owner.fenced

    def _grant(self, life: Life) -> float | None:
        assert life.claim is not None
        if life.fenced or self.rights.setdefault(life.claim.attempt, "grant") != "grant":
            return None
        if self.final is not None:
            raise Wrong("it is sent after its outcome was recorded")
        return self.now

    def _recover(self) -> None:
        for number, (_, kind, standing) in enumerate(self.attempts):
            if not (self._open(number) and self._is_gone(number)):
                continue
            granted = kind == SEND and self.rights.setdefault(number, "revocation") == "grant"
            then, left = self.orphaned(standing, kind, sent_at=self.now if granted else None, now=self.now)
            self.ends[number] = ("released", False)
            self.ready = (then, "reconciling" if then == LOOK else "pending", left)

    orphaned = staticmethod(standings.orphaned)

    def _finish(self, life: Life, ending: Ending) -> bool:
        number = ending.claim.attempt
        if self._open(number) and (ending.fact or not life.fenced):
            self._record(number, ending)
            return True
        if ending.fact:
            self._late(ending)
        return False

    def _record(self, number: int, ending: Ending) -> None:
        self.ends[number] = (ending.phase, ending.requeue is None)
        if ending.requeue is None:
            if self.final is not None:
                raise Wrong(f"{self.final} became {ending.phase}")
            self.final = ending.phase
        else:
            self.ready = (ending.requeue.kind, ending.requeue.state, ending.requeue.standing)

    def _late(self, ending: Ending) -> None:
        last = len(self.attempts) - 1
        _, kind, kept = self.attempts[last]
        if self.ready is not None:
            kind, _, kept = self.ready
        speaks = ending.phase == "accepted" or (kind == LOOK and kept.sends == ending.claim.standing.sends + 1)
        if self.final is not None or not speaks or not (self.ready or self._open(last)):
            self.late.append(ending.phase)
            return
        if self.ready is not None:
            self.ready = None
            self.attempts.append(("fact", "fact", ending.claim.standing))
            last += 1
        self.close(last)
        self._record(last, ending)

    def close(self, number: int) -> None:
        """See to it that nobody sends under a claim any more whose end others have found out."""
        self.rights.setdefault(number, "revocation")

    # --- the rules

    def check(self) -> None:
        resends = self.terms.resends if self.terms.horizon_s is not None and self.policy is None else 0
        if len(self.sends) > 1 + resends and len(set(self.sends)) == 1:
            raise Wrong(f"sent {len(self.sends)} times")
        if len(set(self.sends)) > 1:
            raise Wrong("sent with two keys")
        if self.final == "accepted" and not self.kept:
            raise Wrong("accepted, and the recipient does not have it")
        if self.final == "rejected" and self.sends:
            raise Wrong("rejected, and it was sent")
        if self.final == "failed" and self.kept:
            raise Wrong("failed, and the recipient has it")

    def check_end(self) -> None:
        person = self.ready is not None and self.ready[1] in RESTING
        stopped = self.limits.claims == 0 or all(life.crashed or life.fenced for life in self.lives)
        if self.final is None and not person and not stopped:
            raise Wrong("nobody has it, and nothing says why")


PERFORMED = (
    "accepted",
    "refused",
    "never-dispatched",
    "too-late",
    "landed-and-lost",
    "flying-and-lost",
    "never-and-lost",
)


def explore(terms: Terms, *, policy: str | None = None, world: type[World] = World, claims: int = 4) -> int:
    """Run every path; return how many states there are.

    Raises:
        Wrong: a rule is broken on one of them.
    """
    seen: set[Any] = set()
    path: list[int] = []
    widths: list[int] = []
    while True:
        at = 0

        def pick(width: int, state: Callable[[], Any]) -> int:
            nonlocal at
            if at == len(path):
                reached = state()
                if reached in seen:
                    raise Cut
                seen.add(reached)
                path.append(0)
                widths.append(width)
            at += 1
            return path[at - 1]

        try:
            world(terms, policy=policy, limits=Limits(claims=claims), pick=pick).run()
        except Cut:
            pass
        except Wrong as error:
            error.add_note(f"path: {path[:at]}")
            raise
        while path and path[-1] + 1 >= widths[-1]:
            path.pop()
            widths.pop()
        if not path:
            return len(seen)
        path[-1] += 1

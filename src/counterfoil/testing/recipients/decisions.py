"""A decision queue: requests for permission that are answered once, by us or by somebody else."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, cast

from counterfoil.outcomes import Evidence, Failed
from counterfoil.testing.recipients.faulty import Faulty, Made, handler, key_of

OURS: Final = "us"


class DecisionQueue(Faulty):
    """Takes replies to requests for permission; the first reply to a request stands for good."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._answers: dict[str, tuple[str, str, str]] = {}
        self._otherwise: deque[str] = deque()

    @handler
    def reply(self, ctx: Any, request: str, decision: str) -> dict[str, str]:
        """Answer a request, and return the answer as it stands.

        Raises:
            Failed: somebody else has answered it already.
        """
        return cast(
            "dict[str, str]",
            self.receive(
                ctx, {"request": request, "decision": decision}, lambda: self._resolve(request, decision, key_of(ctx))
            ),
        )

    @handler
    def find(self, ctx: Any, request: str, decision: str) -> dict[str, str] | None:
        """Return our answer to a request, or None while nobody has answered it.

        Raises:
            Failed: it was answered otherwise, so that our reply can never count.
        """
        key = key_of(ctx)

        def find(shown: Any) -> Any:
            answer = self._answers.get(request)
            if answer is None:
                return None
            mine: Made | None = next((made for made in shown if made.key == key), None)
            if mine is None:
                # Made by us and not shown yet, or somebody else's.
                if answer[1] == OURS:
                    return None
                raise Failed(Evidence("resolved-by-another", details={"by": answer[1], "decision": answer[0]}))
            if answer[0] != decision:
                raise Failed(Evidence("answered-otherwise", details={"decision": answer[0]}))
            return mine.item

        return cast("dict[str, str] | None", self.look(ctx, find))

    def resolve(self, request: str, decision: str, *, by: str) -> bool:
        """Answer a request as somebody else; return False if it was answered before."""
        with self.lock:
            if request in self._answers:
                return False
            self._answers[request] = (decision, by, "")
            self.plant({"request": request, "decision": decision}, request=request, by=by)
            return True

    def answer_otherwise(self, decision: str) -> None:
        """Take the next reply for another decision than the one that it carries."""
        self._otherwise.append(decision)

    def decisions(self) -> dict[str, str]:
        """Return each answered request with its decision."""
        with self.lock:
            return {request: decision for request, (decision, *_) in self._answers.items()}

    def _resolve(self, request: str, decision: str, key: str) -> dict[str, str]:
        standing = self._answers.get(request)
        if standing is not None and standing[2] == key != "":
            # The same reply again: the first one landed.
            return {"request": request, "decision": standing[0]}
        if standing is not None:
            raise Failed(Evidence("resolved-by-another", status=409, details={"by": standing[1]}))
        taken = self._otherwise.popleft() if self._otherwise else decision
        self._answers[request] = (taken, OURS, key)
        return {"request": request, "decision": taken}

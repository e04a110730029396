"""A look-up made of a request: what the contract asks, and how its answer is read (rule H8)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from counterfoil.errors import RecipientError, UsageError
from counterfoil.outcomes import Accepted, Evidence, Outcome
from counterfoil.protocol.pointers import MISSING, find
from counterfoil.recipients.http.facts import ACKNOWLEDGED, Response
from counterfoil.recipients.http.meaning import same

if TYPE_CHECKING:
    from counterfoil.broker.contracts import LookUp

_SLOT: Final = re.compile(r"\{(key|/[^{}]*)\}")


class Question:
    """What a look-up asks about one effect.

    Args:
        look_up: the contract's.
        key: the effect key.
        document: the JSON body of the request that it asks about, None if that had none.

    Raises:
        UsageError: the look-up needs something that the request does not have.
    """

    def __init__(self, look_up: LookUp, key: str, document: Any) -> None:
        self._look_up = look_up
        self._key = key
        self._document = document
        self.url = _SLOT.sub(lambda slot: quote(self._text(slot[1]), safe=""), look_up.url)
        self.params = {name: self._filled(value) for name, value in look_up.params.items()}
        self.headers = {name: self._filled(value) for name, value in look_up.headers.items()}
        self._where = {at: self._wanted(value) for at, value in look_up.where.items()}

    def _value(self, slot: str) -> Any:
        if slot == "key":
            return self._key
        found = find(self._document, slot)
        if found is MISSING or isinstance(found, (dict, list)):
            raise UsageError(
                f"the contract's look-up needs a plain value at {slot} in the request's JSON body",
                hint="it would be missed only after a crash, when it is needed",
            )
        return found

    def _text(self, slot: str) -> str:
        found = self._value(slot)
        return {True: "true", False: "false"}[found] if isinstance(found, bool) else str(found)

    def _filled(self, template: str) -> str:
        return _SLOT.sub(lambda slot: self._text(slot[1]), template)

    def _wanted(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        whole = _SLOT.fullmatch(value)
        return self._filled(value) if whole is None else self._value(whole[1])

    def answered(self, outcome: Outcome[Any]) -> Accepted[Any] | None:
        """Read what the look-up came to: the effect, or None if the recipient knows of none.

        Raises:
            RecipientError: it could not be asked, or did not answer the question; that proves nothing.
        """
        response: Response | None = outcome.response
        if response is None:
            raise RecipientError(f"the look-up was not answered: {outcome.evidence.kind}", code="look-up-unanswered")
        if response.status in self._look_up.absent:
            return None
        if not 200 <= response.status < 300 or not response.complete:
            raise self._unreadable(response, "is no answer to the look-up")
        try:
            found = self._found(response)
        except (ValueError, RecursionError):
            raise self._unreadable(response, "has a body that is no JSON") from None
        if found is MISSING:
            return None
        proof = find(found, self._look_up.proof)
        if proof is MISSING or proof is None:
            raise self._unreadable(response, f"has nothing at {self._look_up.proof}")
        return Accepted(proof, "reconcile", _evidence(outcome.evidence))

    def _found(self, response: Response) -> Any:
        look_up, document = self._look_up, response.json()
        if look_up.items is None:
            return document if self._fits(document) else MISSING
        items = find(document, look_up.items)
        if not isinstance(items, list):
            raise self._unreadable(response, f"has no list at {look_up.items or 'its root'}")
        fitting = [item for item in items if self._fits(item)]
        if not self._where and len(fitting) > 1:
            raise self._unreadable(response, "lists several, and the contract's look-up does not say which is ours")
        return fitting[0] if fitting else MISSING

    def _fits(self, item: Any) -> bool:
        return all(same(find(item, at), wanted) for at, wanted in self._where.items())

    @staticmethod
    def _unreadable(response: Response, why: str) -> RecipientError:
        return RecipientError(f"the answer {response.status} {why}", code="look-up-unreadable")


def _evidence(asked: Evidence) -> Evidence:
    return Evidence(
        "found",
        phase=ACKNOWLEDGED,
        bytes_offered=asked.bytes_offered,
        status=asked.status,
        contract=asked.contract,
        details=asked.details,
    )

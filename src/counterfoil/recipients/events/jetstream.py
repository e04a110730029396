"""Publishing to JetStream: everything that comes before the gate, one offer, and what the reply proves."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Any, Final

from counterfoil.errors import RecipientError
from counterfoil.nats_wire import headers
from counterfoil.outcomes import Accepted, Outcome
from counterfoil.ports.recipient import Permit
from counterfoil.recipients.events import replies
from counterfoil.recipients.events.connection import Connection, open_connection
from counterfoil.recipients.events.diagnosis import Finding, diagnose
from counterfoil.recipients.events.facts import Facts, Unsent
from counterfoil.recipients.events.flights import Flight
from counterfoil.recipients.events.leaving import Leaving
from counterfoil.recipients.events.lines import Lines
from counterfoil.recipients.events.look_ups import MESSAGE_ID, LookUp
from counterfoil.recipients.events.message import Message
from counterfoil.recipients.events.places import Place
from counterfoil.recipients.events.replies import End, Gone

EXPECTED_STREAM: Final = "Nats-Expected-Stream"
REMEMBERED_MAX: Final = 4096
CHECK_S: Final = 5.0
COMPARE_S: Final = 2.0


class JetStream:
    """One stream of one JetStream.

    Args:
        place: where its servers are.
        stream: its name.
        connect_s: seconds for connecting.
    """

    askable = True

    def __init__(self, place: Place, stream: str, *, connect_s: float) -> None:
        self._stream = stream
        self._lines: Lines[Connection] = Lines(lambda timeout_s: open_connection(place, timeout_s), timeout_s=connect_s)
        # What went out under which key: the broker would call another content under the same key a duplicate.
        self._sent: OrderedDict[str, str] = OrderedDict()

    def close(self) -> None:
        """Cut the connections."""
        self._lines.close()

    async def publish(self, message: Message, *, key: str, permit: Permit, leaving: Leaving) -> Outcome[Any]:
        """Publish a message once, on the running loop.

        Raises:
            Rejected: the permit refused it.
        """
        facts = Facts()
        try:
            head = self._head(message, key)
            connection = await self._ready(message, key, head=head, facts=facts, permit=permit, leaving=leaving)
        except Unsent as unsent:
            return facts.rejected(unsent.kind, **unsent.details)
        except asyncio.CancelledError:
            if not leaving.forgives():
                raise
            return facts.rejected("cancelled")
        flight = connection.offer(message.subject, message.payload, head)
        end = await _end(connection, flight, leaving)
        if isinstance(end, replies.Answer):
            permit.received(len(end.body))
        known = connection.stream
        assert known is not None
        outcome = replies.judge(end, facts, stream=self._stream, known=known)
        if isinstance(outcome, Accepted) and outcome.proof["duplicate"]:
            return await self._compared(outcome, connection, message, key=key, facts=facts)
        return outcome

    async def _ready(
        self, message: Message, key: str, *, head: bytes, facts: Facts, permit: Permit, leaving: Leaving
    ) -> Connection:
        """Do all that comes before the first byte: when it returns, the gate is won."""
        digest = message.digest
        facts.reached = "connecting"
        while True:
            leaving.check()
            connection = await self._lines.get(leaving.deadline)
            facts.peer, facts.reached = connection.peer, "checking"
            if connection.stream is None or connection.stream.no_ack:
                await self._checked(connection, leaving)
            size = connection.size(message.subject, message.payload, head)
            if not connection.clear:
                await connection.room(leaving.deadline)
            if connection.alive:
                break
        leaving.check()
        if self._sent.get(key, digest) != digest:
            raise Unsent("duplicate-differs")
        # Charged before the gate: a budget that has no room for it has sent nothing.
        if not permit.offered(size):
            raise Unsent("refused-by-policy", reason="budget-bytes-out")
        permit.dispatch(peer=connection.peer)
        facts.dispatched, facts.reached, facts.bytes_offered = True, "sent", size
        facts.more["key"] = key
        self._sent[key] = digest
        while len(self._sent) > REMEMBERED_MAX:
            self._sent.popitem(last=False)
        return connection

    async def _checked(self, connection: Connection, leaving: Leaving) -> None:
        try:
            async with asyncio.timeout(leaving.rest_s):
                await connection.check(self._stream, min(leaving.deadline, time.monotonic() + CHECK_S))
        except TimeoutError:
            raise Unsent("deadline-before-dispatch") from None

    def _head(self, message: Message, key: str) -> bytes:
        return headers((*message.headers, (EXPECTED_STREAM, self._stream), (MESSAGE_ID, key)))

    async def _compared(
        self, outcome: Outcome[Any], connection: Connection, message: Message, *, key: str, facts: Facts
    ) -> Outcome[Any]:
        """Look at what our message is a duplicate of: another content under its id is not ours."""
        assert isinstance(outcome, Accepted)
        look_up = LookUp(connection, self._stream, time.monotonic() + COMPARE_S)
        if await look_up.differs(outcome.proof["seq"], message, key):
            return facts.uncertain("duplicate-differs", seq=outcome.proof["seq"])
        return outcome

    async def look_up(self, message: Message, *, key: str, deadline: float) -> Accepted[Any] | None:
        """Find a message in the stream; None: it has none.

        Raises:
            RecipientError: it could not be asked.
        """
        try:
            connection = await self._lines.get(deadline)
        except Unsent as unsent:
            raise RecipientError(f"the look-up was not asked: {unsent.kind}", code="look-up-unanswered") from None
        return await LookUp(connection, self._stream, deadline).find(message, key)

    async def diagnose(self, *, deadline: float) -> list[Finding]:
        """Ask for the stream's configuration, and say what its promises rest on.

        Raises:
            RecipientError: it could not be asked.
        """
        try:
            connection = await self._lines.get(deadline)
        except Unsent as unsent:
            details = "".join(f", {name}: {said}" for name, said in unsent.details.items())
            raise RecipientError(f"there is no connection: {unsent.kind}{details}", code="no-connection") from None
        said = await connection.ask(f"$JS.API.STREAM.INFO.{self._stream}", b"", deadline)
        return diagnose(said, version=connection.version)


async def _end(connection: Connection, flight: Flight, leaving: Leaving) -> End:
    """Wait for the end of a message, until nobody waits for it and it cannot land any more."""
    why = "deadline"
    try:
        end = await flight.wait(leaving.rest_s)
    except asyncio.CancelledError:
        if not leaving.forgives():
            raise
        end, why = flight.end, leaving.why
    if end is None:
        await leaving.see_out(connection.retire(flight))
        end = flight.end
    return Gone(why) if end is None else end

"""The messages in flight on one connection, and how replies and denials find theirs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count

from counterfoil.alarms import Alarm
from counterfoil.recipients.events.replies import Answer, Denied, End, Gone


class Flight:
    """One message that was offered and has not been answered.

    Attributes:
        token: the last word of its reply subject.
        subject: where it went.
        end: how it ended, None as long as it has not.
        until: when whoever waits waits no longer, on `time.monotonic()`.
    """

    __slots__ = ("_alarm", "_waiter", "end", "subject", "token", "until")

    def __init__(self, token: str, subject: str, alarm: Alarm) -> None:
        self._alarm = alarm
        self.token = token
        self.subject = subject
        self.end: End | None = None
        self.until: float | None = None
        self._waiter: asyncio.Future[None] | None = None

    def finish(self, end: End) -> None:
        """Say how it ended; the first word counts."""
        if self.end is None:
            self.end = end
            self.wake()

    def wake(self) -> None:
        """Have whoever waits look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float) -> End | None:
        """Wait until it has ended, or for so long; None: it has not."""
        if self.end is None and timeout_s > 0:
            self._waiter = asyncio.get_running_loop().create_future()
            self.until = time.monotonic() + timeout_s
            self._alarm.at(self.until)
            try:
                await self._waiter
            finally:
                self.until = None
        return self.end


class Flights:
    """What is in flight on one connection."""

    def __init__(self) -> None:
        self._alarm = Alarm(self._look)
        self._numbers: Iterator[int] = count(1)
        self._flights: dict[str, Flight] = {}
        self._denials: Counter[str] = Counter()

    def add(self, subject: str) -> Flight:
        """Take in a message that is about to be offered."""
        flight = Flight(str(next(self._numbers)), subject, self._alarm)
        self._flights[flight.token] = flight
        return flight

    def _look(self, now: float) -> float | None:
        """Wake those whose time is over; return when the next one's is."""
        following: float | None = None
        for flight in list(self._flights.values()):
            if flight.until is None:
                continue
            if flight.until <= now:
                flight.wake()
            elif following is None or flight.until < following:
                following = flight.until
        return following

    def __len__(self) -> int:
        return len(self._flights)

    def answered(self, token: str, answer: Answer) -> None:
        """Take in a reply; one that nobody waits for is dropped."""
        flight = self._flights.pop(token, None)
        if flight is not None:
            flight.finish(answer)
            if self._denials:
                self._settle(_folded(flight.subject))

    def denied(self, subject: str) -> None:
        """Take in that the server denied a message with this subject, in whatever case it tells it.

        It does not say which. Each message is either denied or answered, so when there are as many denials as
        messages without an answer, all of these were denied; before that nobody knows.
        """
        self._denials[subject] += 1
        self._settle(subject)

    def _settle(self, subject: str) -> None:
        if not self._denials[subject]:
            del self._denials[subject]
            return
        open_ones = [flight for flight in self._flights.values() if _folded(flight.subject) == subject]
        if self._denials[subject] < len(open_ones):
            return
        del self._denials[subject]
        for flight in open_ones:
            del self._flights[flight.token]
            flight.finish(Denied())

    def forget(self, flight: Flight) -> None:
        """Let go of one for which no denial can come any more."""
        if self._flights.pop(flight.token, None) is not None and self._denials:
            self._settle(_folded(flight.subject))

    def lose(self, why: str) -> None:
        """The connection is gone: none of them is answered any more."""
        flights, self._flights = list(self._flights.values()), {}
        self._denials.clear()
        for flight in flights:
            flight.finish(Gone(why))


def _folded(subject: str) -> str:
    return subject.lower()

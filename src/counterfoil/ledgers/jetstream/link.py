"""One connection to NATS: questions and answers, and nothing that outlives it.

nats-py speaks the protocol and is told not to reconnect; what is published goes past its queues. When the connection
ends, everybody who waits for an answer is told so at once; the next question is asked over another connection.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client

from counterfoil.ledgers.jetstream.place import Place
from counterfoil.nats_wire import Wire

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_PING_S: Final = 5
CONNECT_S: Final = 4.0


class Lost(Exception):
    """No answer: whether the server did what it was asked is unknown."""


class Unreachable(Exception):
    """There is no connection: nothing was asked."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What was answered: headers, if there are any, and what is below them."""

    data: bytes
    headers: Mapping[str, str] | None = None

    @property
    def status(self) -> str | None:
        """The code of the status line, if it has one."""
        return None if self.headers is None else self.headers.get("Status")


class Volley:
    """Messages that are published together, and the answers to them as they come.

    Args:
        heard: is called with the number of a message and its answer, in the order in which the server answered.
    """

    def __init__(self, heard: Callable[[int, Answer], None]) -> None:
        self._heard = heard
        self._open = 0
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self) -> None:
        """Wait for one more answer."""
        self._open += 1

    def heard(self, number: int, answer: Answer) -> bool:
        """Take an answer; it is the only one to its message."""
        self._heard(number, answer)
        self._open -= 1
        if not self._open and not self._over.done():
            self._over.set_result(None)
        return True

    def lose(self, why: str) -> None:
        """Say that the answers that have not come will not come."""
        if not self._over.done():
            self._over.set_exception(Lost(why))
            self._over.exception()  # somebody may have stopped waiting

    async def over(self, patience_s: float) -> None:
        """Wait until all have come.

        Raises:
            Lost: they did not.
        """
        if not self._open:
            return
        try:
            async with asyncio.timeout(patience_s):
                await self._over
        except TimeoutError:
            raise Lost("the server does not answer") from None


class _Question(Volley):
    """One question; the answer to one of many messages ends with one that has a status."""

    def __init__(self, heard: Callable[[int, Answer], None], *, many: bool) -> None:
        super().__init__(heard)
        self._many = many

    def heard(self, number: int, answer: Answer) -> bool:
        """Take an answer; return whether it was the last."""
        if self._many and answer.status is None:
            self._heard(number, answer)
            return False
        return super().heard(number, answer)


class Link:
    """One connection, on the loop that it was opened on."""

    def __init__(self) -> None:
        self._client = Client()
        self._wire = Wire()
        # The one thing that nats-py does not take by argument.
        self._client._transport = self._wire  # noqa: SLF001
        self._inbox = f"_INBOX.{os.urandom(12).hex()}"
        self._count = 0
        self._waiting: dict[bytes, tuple[Volley, int]] = {}
        # What the server last complained about, for instance a denied subject: it answers that to nobody in particular.
        self._complaint = ""
        self.open = False

    @property
    def server(self) -> Mapping[str, Any]:
        """What the server said of itself."""
        return self._client._server_info  # noqa: SLF001 - it is not handed out otherwise

    async def connect(self, place: Place, url: str, *, timeout_s: float) -> None:
        """Connect to one server, within so many seconds.

        Raises:
            Unreachable: that did not work.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.connect(
                    [url],
                    name="counterfoil-ledger",
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=int(CONNECT_S),
                    ping_interval=_PING_S,
                    error_cb=self._on_error,
                    closed_cb=self._on_closed,
                    **place.options(),
                )
                self._check_tls(place)
                self._wire.listen(self._inbox, self._on_answer)
                # Only answers with headers come this way, and none of them may be dropped: a page would miss a record.
                await self._client.subscribe(
                    f"{self._inbox}.*", cb=self._on_reply, pending_msgs_limit=-1, pending_bytes_limit=-1
                )
                await self._client.flush()
        except (OSError, ValueError, nats.errors.Error, TimeoutError) as error:
            await self.close()
            text = self._complaint or str(error)
            raise Unreachable(f"{type(error).__name__}: {text}" if text else type(error).__name__) from error
        self.open = True

    def _check_tls(self, place: Place) -> None:
        if place.ca is not None and not self.server.get("tls_required"):
            raise nats.errors.Error("the server does not ask for TLS, and ca= is given")

    def publish(self, subject: str, data: bytes, *, head: bytes, volley: Volley, number: int) -> None:
        """Publish, in the order of calls; the answer goes to the volley, under that number."""
        self._count += 1
        token = b"%d" % self._count
        volley.add()
        self._waiting[token] = (volley, number)
        self._wire.publish(subject, data, token=token, head=head)

    async def ask(self, subject: str, data: bytes, *, patience_s: float, many: bool = False) -> list[Answer]:
        """Ask, and return what was answered: one message, or with `many` all up to one that has a status.

        Raises:
            Unreachable: the connection is closed; nothing was sent.
            Lost: no answer within `patience_s` seconds, or the connection broke.
        """
        if not self.open:
            raise Unreachable("the connection is closed")
        answers: list[Answer] = []
        question = _Question(lambda _, answer: answers.append(answer), many=many)
        self.publish(subject, data, head=b"", volley=question, number=0)
        token = b"%d" % self._count
        try:
            await question.over(patience_s)
        except Lost as lost:
            more = f" ({self._complaint})" if self._complaint else ""
            raise Lost(f"{lost}{more}") from None
        finally:
            self._waiting.pop(token, None)
        return answers

    async def close(self) -> None:
        """Close it; nothing is waited for that the server would have to say."""
        self.open = False
        with suppress(OSError, nats.errors.Error, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._client.close()
        self._end()

    def _on_answer(self, token: bytes, data: bytes) -> None:
        self._took(token, Answer(data))

    async def _on_reply(self, message: Msg) -> None:
        self._took(message.subject.rpartition(".")[2].encode(), Answer(message.data, message.headers or {}))

    def _took(self, token: bytes, answer: Answer) -> None:
        found = self._waiting.get(token)
        if found is not None and found[0].heard(found[1], answer):
            del self._waiting[token]

    async def _on_error(self, error: Exception) -> None:
        """Keep what was complained about; what breaks the connection closes it."""
        self._complaint = str(error)

    async def _on_closed(self) -> None:
        self.open = False
        self._end()

    def _end(self) -> None:
        self._wire.forget()
        waiting, self._waiting = self._waiting, {}
        for volley, _ in waiting.values():
            volley.lose("the connection broke")

"""One connection to NATS: questions and answers, and nothing that outlives it.

nats-py speaks the protocol and is told not to reconnect. When the connection ends, everybody who waits for an answer is
told so at once; the next question is asked over another connection.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import nats.errors
from nats.aio.client import Client

from counterfoil.ledgers.jetstream.place import Place

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_PING_S: Final = 5
CONNECT_S: Final = 4.0


class Lost(Exception):
    """No answer: whether the server did what it was asked is unknown."""


class Unreachable(Exception):
    """There is no connection: nothing was asked."""


class _Waiting:
    """An answer that is waited for; one of many messages ends with one that has a status."""

    __slots__ = ("future", "heard", "many", "messages")

    def __init__(
        self, future: asyncio.Future[list[Msg]], *, many: bool, heard: Callable[[Msg], None] | None = None
    ) -> None:
        self.future = future
        self.heard = heard
        self.many = many
        self.messages: list[Msg] = []


class Link:
    """One connection, on the loop that it was opened on."""

    def __init__(self) -> None:
        self._client = Client()
        self._inbox = f"_INBOX.{os.urandom(12).hex()}"
        self._count = 0
        self._waiting: dict[str, _Waiting] = {}
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
                await self._client.subscribe(f"{self._inbox}.*", cb=self._on_reply, pending_msgs_limit=-1)
                await self._client.flush()
        except (OSError, ValueError, nats.errors.Error, TimeoutError) as error:
            await self.close()
            text = self._complaint or str(error)
            raise Unreachable(f"{type(error).__name__}: {text}" if text else type(error).__name__) from error
        self.open = True

    def _check_tls(self, place: Place) -> None:
        if place.ca is not None and not self.server.get("tls_required"):
            raise nats.errors.Error("the server does not ask for TLS, and ca= is given")

    async def ask(
        self, subject: str, data: bytes, *, headers: dict[str, str] | None = None, patience_s: float, many: bool = False
    ) -> list[Msg]:
        """Ask, and return what was answered: one message, or with `many` all up to one that has a status.

        Raises:
            Unreachable: the connection is closed; nothing was sent.
            Lost: no answer within `patience_s` seconds, or the connection broke.
        """
        waiting = await self.begin(subject, data, headers=headers, many=many)
        return await self.finish(waiting, patience_s)

    async def begin(
        self,
        subject: str,
        data: bytes,
        *,
        headers: dict[str, str] | None,
        many: bool = False,
        heard: Callable[[Msg], None] | None = None,
    ) -> str:
        """Send a question, in the order of calls, and return what `finish` takes.

        Args:
            subject: where it is answered.
            data: its payload.
            headers: its headers.
            many: all messages up to one that has a status are the answer.
            heard: is called as each comes, in the order in which the server answered whatever was asked.

        Raises:
            Unreachable: the connection is closed; nothing was sent.
        """
        self._count += 1
        token = str(self._count)
        if not self.open:
            raise Unreachable("the connection is closed")
        self._waiting[token] = _Waiting(asyncio.get_running_loop().create_future(), many=many, heard=heard)
        try:
            await self._client.publish(subject, data, reply=f"{self._inbox}.{token}", headers=headers)
        except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError) as error:
            del self._waiting[token]
            raise Unreachable("the connection is closed") from error
        return token

    async def finish(self, token: str, patience_s: float) -> list[Msg]:
        """Wait for an answer.

        Raises:
            Lost: it did not come.
        """
        waiting = self._waiting[token]
        if waiting.future.done():
            del self._waiting[token]
            return waiting.future.result()
        try:
            async with asyncio.timeout(patience_s):
                return await waiting.future
        except TimeoutError:
            more = f" ({self._complaint})" if self._complaint else ""
            raise Lost(f"the server does not answer{more}") from None
        finally:
            self._waiting.pop(token, None)

    async def close(self) -> None:
        """Close it; nothing is waited for that the server would have to say."""
        self.open = False
        with suppress(OSError, nats.errors.Error, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._client.close()
        self._end()

    async def _on_reply(self, message: Msg) -> None:
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is None or waiting.future.done():
            return
        if waiting.heard is not None:
            waiting.heard(message)
        waiting.messages.append(message)
        if not waiting.many or "Status" in (message.headers or {}):
            waiting.future.set_result(waiting.messages)

    async def _on_error(self, error: Exception) -> None:
        """Keep what was complained about; what breaks the connection closes it."""
        self._complaint = str(error)

    async def _on_closed(self) -> None:
        self.open = False
        self._end()

    def _end(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.future.done():
                waiting.future.set_exception(Lost("the connection broke"))
                waiting.future.exception()  # somebody may have stopped waiting

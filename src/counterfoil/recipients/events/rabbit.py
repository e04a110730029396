"""Publishing to RabbitMQ (rule V6): publisher confirms, mandatory, persistent, and a connection that never comes back.

An acknowledgement is accepted, and a message that the broker returns has failed: no queue took it. A negative
acknowledgement and a confirm that never came are uncertain. RabbitMQ keeps nothing that could be asked about a message.
"""
# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import aio_pika
import aiormq
from aio_pika.abc import AbstractChannel, AbstractExchange
from aio_pika.exceptions import DeliveryError, PublishError

from counterfoil.outcomes import Accepted, Outcome, Rejected
from counterfoil.ports.recipient import Permit
from counterfoil.recipients.events.facts import Facts, Unsent
from counterfoil.recipients.events.leaving import Leaving
from counterfoil.recipients.events.lines import Lines
from counterfoil.recipients.events.message import Message
from counterfoil.recipients.events.places import Place, peer_of
from counterfoil.recipients.events.sockets import reset
from counterfoil.recipients.secret import Secret

# What is there without being declared: a message goes to the queue that its routing key names.
DEFAULT_EXCHANGE: Final = "amq.default"
PROMISES: Final = ("consumers-not-established", "sync-policy-unknown", "replicas-unknown")
# How long a confirm may come after its caller has gone, before the connection is cut so that nothing more is read.
RETIRE_S: Final = 2.0
HEARTBEAT_S: Final = 10


class _Plain(aio_pika.Connection):
    """aio-pika's plain connection, that tells which socket it is on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.factory = _Factory(secure=self.url.scheme == "amqps")
        self.kwargs["transport_factory"] = self.factory


class _Factory(aiormq.TransportFactory):
    """Makes the transport as aiormq does, and keeps it in sight."""

    def __init__(self, *, secure: bool) -> None:
        from aiormq.connection import TCPTransportFactory, TLSTransportFactory

        self._makes = TLSTransportFactory() if secure else TCPTransportFactory()
        self.writer: asyncio.StreamWriter | None = None

    async def create(self, *args: Any, **kwargs: Any) -> Any:
        """Connect."""
        reader, self.writer = await self._makes.create(*args, **kwargs)
        return reader, self.writer


class RabbitLine:
    """One connection with one channel, on the loop that it was made on.

    Attributes:
        peer: the broker's address.
        exchange: where messages go.
    """

    def __init__(self, connection: _Plain, channel: AbstractChannel, *, exchange: AbstractExchange, peer: str) -> None:
        self._connection = connection
        self._channel = channel
        self._ended = asyncio.Event()
        self.peer = peer
        self.exchange = exchange
        connection.close_callbacks.add(self._closed)
        channel.close_callbacks.add(self._closed)
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    @property
    def alive(self) -> bool:
        """Whether it can be used."""
        return not (self._ended.is_set() or self._connection.is_closed or self._channel.is_closed)

    def cut(self) -> None:
        """End it hard; what is in flight ends as uncertain."""
        self._ended.set()
        _cut(self._connection)

    def _closed(self, *_: Any) -> None:
        self.cut()

    async def _keep(self) -> None:
        # A loop that shuts down cancels this task: then the socket must not outlive it.
        try:
            await self._ended.wait()
        finally:
            self.cut()
        with suppress(Exception):
            await self._connection.close()


def _cut(connection: _Plain) -> None:
    if connection.factory.writer is not None:
        reset(connection.factory.writer)


class Rabbit:
    """One exchange of one RabbitMQ.

    Args:
        place: where it is.
        exchange: its name.
        connect_s: seconds for connecting.
    """

    askable = False

    def __init__(self, place: Place, exchange: str, *, connect_s: float) -> None:
        self._place = place
        self._exchange = exchange
        self._lines: Lines[RabbitLine] = Lines(self._open, timeout_s=connect_s)

    def close(self) -> None:
        """Cut the connections."""
        self._lines.close()

    async def look_up(self, message: Message, *, key: str, deadline: float) -> Accepted[Any] | None:
        """Nothing can be asked; `askable` says so."""
        raise NotImplementedError

    async def publish(self, message: Message, *, key: str, permit: Permit, leaving: Leaving) -> Outcome[Any]:
        """Publish a message once, on the running loop.

        Raises:
            Rejected: the permit refused it.
        """
        facts = Facts()
        try:
            line = await self._ready(message, facts=facts, permit=permit, leaving=leaving, key=key)
        except Unsent as unsent:
            return facts.rejected(unsent.kind, **unsent.details)
        except asyncio.CancelledError:
            if not leaving.forgives():
                raise
            return facts.rejected("cancelled")
        publishing = asyncio.get_running_loop().create_task(_publish(line, message, key))
        why = "deadline"
        try:
            await asyncio.wait({publishing}, timeout=leaving.rest_s)
        except asyncio.CancelledError:
            if not leaving.forgives():
                line.cut()
                raise
            why = leaving.why
        if not publishing.done():
            await leaving.see_out(_retired(line, publishing))
        return self._judged(publishing, facts, why)

    async def _ready(self, message: Message, *, facts: Facts, permit: Permit, leaving: Leaving, key: str) -> RabbitLine:
        """Do all that comes before the first byte: when it returns, the gate is won."""
        facts.reached = "connecting"
        leaving.check()
        line = await self._lines.get(leaving.deadline)
        facts.peer = line.peer
        leaving.check()
        if not line.alive:
            raise Unsent("connect-failed", error="connection-lost")
        size = len(message.payload)
        if not permit.offered(size):
            raise Unsent("refused-by-policy", reason="budget-bytes-out")
        permit.dispatch(peer=line.peer)
        facts.dispatched, facts.reached, facts.bytes_offered = True, "sent", size
        facts.more["key"] = key
        return line

    def _judged(self, publishing: asyncio.Task[Any], facts: Facts, why: str) -> Outcome[Any]:
        if not publishing.done() or publishing.cancelled():
            return facts.uncertain(why)
        error = publishing.exception()
        if error is None:
            facts.reached = "answered"
            if not isinstance(publishing.result(), aiormq.spec.Basic.Ack):
                return facts.uncertain("malformed-reply")
            # The broker gives a message no number that would be its own.
            proof = {"stream": self._exchange, "seq": None, "duplicate": False}
            return facts.accepted(proof, promises=PROMISES)
        if isinstance(error, PublishError):
            facts.reached = "answered"
            return facts.failed("returned", status=312)
        if isinstance(error, DeliveryError):
            facts.reached = "answered"
            return facts.uncertain("nack")
        return facts.uncertain("connection-lost", error=type(error).__name__)

    async def _open(self, timeout_s: float) -> RabbitLine:
        last = Unsent("connect-failed")
        for url in self._place.urls:
            try:
                async with asyncio.timeout(timeout_s / len(self._place.urls)):
                    return await self._connect(url)
            except Rejected as rejected:
                raise Unsent(rejected.evidence.kind, **(rejected.evidence.details or {})) from None
            except Exception as error:  # noqa: BLE001 - nothing was offered, whatever it was
                last = Unsent("connect-failed", error=type(error).__name__, peer=peer_of(url))
        raise last

    async def _connect(self, url: str) -> RabbitLine:
        connection = await aio_pika.connect(connection_class=_Plain, heartbeat=HEARTBEAT_S, **self._named(url))
        try:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            if self._exchange == DEFAULT_EXCHANGE:
                exchange: AbstractExchange = channel.default_exchange
            else:
                exchange = await channel.get_exchange(self._exchange, ensure=True)
        except BaseException:
            _cut(connection)
            with suppress(Exception):
                await connection.close()
            raise
        return RabbitLine(connection, channel, exchange=exchange, peer=peer_of(url))

    def _named(self, url: str) -> dict[str, Any]:
        """Take an address apart for aio-pika; secrets are read now."""
        parts, auth = urlsplit(url), self._place.auth
        said: dict[str, Any] = {"host": parts.hostname, "ssl": parts.scheme == "amqps"}
        said["port"] = int(peer_of(url).rpartition(":")[2])
        said["virtualhost"] = unquote(parts.path.removeprefix("/")) or "/"
        said["login"], said["password"] = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        if isinstance(auth, tuple):
            said["login"], said["password"] = auth[0], auth[1].resolve()
        elif isinstance(auth, Secret):
            said["password"] = auth.resolve()
        if said["ssl"]:
            said["ssl_context"] = self._place.tls or ssl.create_default_context()
        return said


async def _publish(line: RabbitLine, message: Message, key: str) -> Any:
    told = aio_pika.Message(
        message.payload,
        headers=dict(message.headers),
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        message_id=key,
        content_type="application/json" if message.is_json else "application/octet-stream",
    )
    return await line.exchange.publish(told, message.subject, mandatory=True, timeout=None)


async def _retired(line: RabbitLine, publishing: asyncio.Task[Any]) -> None:
    """Wait a little for a confirm that nobody waits for any more; then cut, so that nothing can land later."""
    done, _ = await asyncio.wait({publishing}, timeout=RETIRE_S)
    if not done:
        line.cut()
        await asyncio.wait({publishing}, timeout=RETIRE_S)
        publishing.cancel()
        await asyncio.wait({publishing}, timeout=RETIRE_S)

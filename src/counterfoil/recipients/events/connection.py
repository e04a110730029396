"""One connection to NATS, of which nothing is kept that could be sent later.

nats-py speaks the protocol. It is told not to reconnect and to keep nothing while it is not connected; what it lacks
for our purpose is here and in `wire`: each message has a reply subject of its own, the end of the connection ends what
is in flight, a denial finds its message, and a connection whose server does not read any more is cut hard.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from counterfoil.errors import RecipientError
from counterfoil.outcomes import Rejected
from counterfoil.recipients.events import replies, streams
from counterfoil.recipients.events.facts import Unsent
from counterfoil.recipients.events.flights import Flight, Flights
from counterfoil.recipients.events.places import Place
from counterfoil.recipients.events.replies import Answer, Denied
from counterfoil.recipients.events.streams import StreamFacts
from counterfoil.recipients.events.wire import Wire

# How long a server may take to say that it has read what was offered, once nobody waits for the answer any more.
RETIRE_S: Final = 2.0
# How long its answer may come after that, to be kept as late evidence.
LATE_S: Final = 0.25
PING_S: Final = 10
STREAM_NOT_FOUND: Final = 10059
# What the server says where a subject is denied, as nats-py hands it over. The protocol has no other word for it.
_DENIAL: Final = 'nats: permissions violation for publish to "'


class Connection:
    """One connection, on the loop that it was made on; `open_connection` makes it.

    Attributes:
        peer: the server's address.
        stream: what is known of the stream, None as long as nobody asked.
    """

    def __init__(self, place: Place, url: str) -> None:
        self._place = place
        self._url = url
        self._client = Client()
        self._wire = Wire()
        # The one thing that nats-py does not take by argument.
        self._client._transport = self._wire  # noqa: SLF001
        self._flights = Flights()
        self._inbox = f"{place.inbox_prefix}.{os.urandom(12).hex()}"
        self._ended = asyncio.Event()
        self._trouble: Exception | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._checking = asyncio.Lock()
        self.peer = place.peer(url)
        self.stream: StreamFacts | None = None

    async def open(self, timeout_s: float) -> None:
        """Connect, and listen to replies.

        Raises:
            Unsent: that did not work.
        """
        try:
            options = self._place.options()
        except Rejected as rejected:
            raise Unsent(rejected.evidence.kind, **(rejected.evidence.details or {})) from None
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.connect(
                    [self._url],
                    name="counterfoil",
                    allow_reconnect=False,
                    pending_size=0,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    # nats-py hands it on as it is, whatever its annotation says.
                    connect_timeout=timeout_s,  # type: ignore[arg-type]
                    ping_interval=PING_S,
                    dont_randomize=True,
                    error_cb=self._on_error,
                    closed_cb=self._on_closed,
                    inbox_prefix=self._place.inbox_prefix,
                    **options,
                )
                self._wire.listen(self._inbox, self._on_answer)
                # Only answers with headers come this way.
                await self._client.subscribe(f"{self._inbox}.*", cb=self._on_reply)
                await self._client.flush()
        except (OSError, nats.errors.Error) as error:
            trouble = self._trouble or error
            self.cut()
            raise Unsent("connect-failed", error=_name(trouble)) from None
        except BaseException:
            self.cut()
            raise
        if self._trouble is not None:
            # Denied the inbox, we would never hear of anything that we publish.
            self.cut()
            raise Unsent("connect-failed", error=_name(self._trouble))
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        # A loop that shuts down cancels this task: then the socket must not outlive it.
        try:
            await self._ended.wait()
        finally:
            self.cut()
        with suppress(OSError, nats.errors.Error):
            # What nats-py has under way on it ends too.
            await self._client.close()

    @property
    def alive(self) -> bool:
        """Whether it can be used."""
        return self._client.is_connected and not self._ended.is_set()

    def cut(self) -> None:
        """End it hard; what is in flight ends as uncertain."""
        self._ended.set()
        self._wire.cut()
        self._flights.lose("connection-lost")

    async def _on_closed(self) -> None:
        self.cut()

    async def _on_error(self, error: Exception) -> None:
        said = str(error)
        if said.startswith(_DENIAL):
            self._flights.denied(said.removeprefix(_DENIAL).removesuffix('"'))
            return
        self._trouble = error

    def _on_answer(self, token: bytes, body: bytes) -> None:
        self._flights.answered(token.decode("ascii", "replace"), Answer(None, body))

    async def _on_reply(self, message: Msg) -> None:
        token = message.subject.rpartition(".")[2]
        status = None if message.headers is None else message.headers.get("Status")
        self._flights.answered(token, Answer(status, message.data))

    # --- sending

    @property
    def clear(self) -> bool:
        """Whether what is sent now goes out now."""
        return not self._wire.stalled

    async def room(self, deadline: float) -> None:
        """Wait until what is sent now goes out now.

        Raises:
            Unsent: the server does not read, or the connection is gone.
        """
        while not self.clear:
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await self._wire.clear()
                    await asyncio.sleep(0)
            except TimeoutError:
                raise Unsent("deadline-before-dispatch", stalled=True) from None
            if not self.alive:
                break
        if not self.alive:
            raise Unsent("connect-failed", error="connection-lost")

    def size(self, subject: str, payload: bytes, head: bytes) -> int:
        """Return how many bytes a message is on the wire, up to a few digits of its token.

        Raises:
            Unsent: the server would take it for an attack and end the connection of all others in flight.
        """
        size = len(head) + len(payload)
        if size > self._client.max_payload:
            raise Unsent("too-large", bytes=size, bytes_max=self._client.max_payload)
        return len(subject.encode()) + len(self._inbox) + size + 24

    def offer(self, subject: str, payload: bytes, head: bytes = b"") -> Flight:
        """Offer a message once; `head` is its headers as they are on the wire."""
        flight = self._flights.add(subject)
        if self.alive:
            self._wire.publish(subject, payload, token=flight.token.encode(), head=head)
        else:
            self._flights.forget(flight)
            flight.finish(replies.Gone("connection-lost"))
        return flight

    async def retire(self, flight: Flight) -> None:
        """See to it that a message which nobody waits for any more cannot land later than this returns.

        A server that answers a ping has read all that was offered before. One that does not is cut off, so that
        nothing of it can be read any more. Its reply may still come, and is in `flight.end` then.
        """
        try:
            async with asyncio.timeout(RETIRE_S):
                await self._client.flush(timeout=60)
        except (TimeoutError, OSError, nats.errors.Error):
            self.cut()
            return
        if flight.end is None:
            await flight.wait(LATE_S)
        self._flights.forget(flight)

    # --- asking

    async def ask(self, subject: str, question: bytes, deadline: float) -> dict[str, Any]:
        """Ask JetStream's own interface something that changes nothing.

        Raises:
            RecipientError: it was not answered, or not so that it can be read.
        """
        flight = self.offer(subject, question)
        end = await flight.wait(deadline - time.monotonic())
        self._flights.forget(flight)
        if isinstance(end, Denied):
            raise RecipientError("the server denied the look-up", code="look-up-denied")
        if not isinstance(end, Answer) or end.status is not None:
            raise RecipientError("the look-up was not answered", code="look-up-unanswered")
        said = replies.document(end.body)
        if said is None:
            raise RecipientError("the answer to the look-up is no JSON object", code="look-up-unreadable")
        return said

    @property
    def version(self) -> str:
        """The server's version."""
        return str(self._client._server_info.get("version", "unknown"))  # noqa: SLF001 - it is not handed out otherwise

    async def check(self, stream: str, deadline: float) -> StreamFacts:
        """Read the stream's configuration, once for this connection.

        Returns:
            What is known of it. A stream that is not there, or that we may not ask about, says the rest itself.

        Raises:
            Unsent: it acknowledges nothing, or the server does not say.
        """
        async with self._checking:
            if self.stream is None:
                self.stream = await self._read(stream, deadline)
        if self.stream.no_ack:
            raise Unsent("stream-no-ack", stream=self.stream.details)
        return self.stream

    async def _read(self, stream: str, deadline: float) -> StreamFacts:
        try:
            said = await self.ask(f"$JS.API.STREAM.INFO.{stream}", b"", deadline)
        except RecipientError as error:
            if error.code == "look-up-denied" or (self.alive and time.monotonic() < deadline):
                return streams.UNKNOWN
            raise Unsent("stream-unchecked", reason=error.code) from None
        if said.get("error") is None:
            return streams.read(said.get("config"))
        code = replies.error_code(said)
        if code == STREAM_NOT_FOUND:
            return streams.UNKNOWN
        raise Unsent("stream-unchecked", code=code)


async def open_connection(place: Place, timeout_s: float) -> Connection:
    """Connect to the first server that answers.

    Raises:
        Unsent: none does.
    """
    last = Unsent("connect-failed")
    deadline = time.monotonic() + timeout_s
    for left in range(len(place.urls), 0, -1):
        connection = Connection(place, place.urls[-left])
        try:
            # One that does not answer leaves time for the others.
            await connection.open(max(0.001, (deadline - time.monotonic()) / left))
        except Unsent as unsent:
            last = Unsent(unsent.kind, peer=connection.peer, **unsent.details)
            continue
        return connection
    raise last


def _name(error: BaseException) -> str:
    import errno

    number = getattr(error, "errno", None)
    with suppress(KeyError):
        return errno.errorcode[number] if isinstance(number, int) else type(error).__name__
    return type(error).__name__

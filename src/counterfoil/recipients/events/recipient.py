"""`Events`: a recipient that is a stream of NATS JetStream, or an exchange of RabbitMQ."""

from __future__ import annotations

import importlib.util
import ssl
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

from counterfoil import threads
from counterfoil.errors import UsageError
from counterfoil.outcomes import Accepted, Outcome
from counterfoil.ports.recipient import Permit
from counterfoil.protocol import keys
from counterfoil.recipients.events import message as messages
from counterfoil.recipients.events.leaving import Leaving
from counterfoil.recipients.events.message import Message
from counterfoil.recipients.events.operation import FORMAT, VERB, Operation, Settings
from counterfoil.recipients.events.places import Auth, Place, exchange_of, peer_of, stream_of, urls_of
from counterfoil.threads import when_collected


class Broker(Protocol):
    """What one kind of broker does; both colours come to it on a loop."""

    @property
    def askable(self) -> bool:
        """Whether it can be asked what became of a message."""
        ...

    async def publish(self, message: Message, *, key: str, permit: Permit, leaving: Leaving) -> Outcome[Any]:
        """Publish a message once; return when nothing of it can reach the broker any more."""
        ...

    async def look_up(self, message: Message, *, key: str, deadline: float) -> Accepted[Any] | None:
        """Find a message that was published under a key; None: there is none."""
        ...

    def close(self) -> None:
        """Cut the connections, from any thread."""
        ...


class Events:
    """A stream of events: makes operations, and publishes nothing by itself.

    An event makes at most one attempt. Its message id is the effect's key, and only the acknowledgement of this very
    stream counts. Nothing is kept to be sent later: where there is no connection, an event is refused.

    It connects when it is first used, once for each event loop, and again after a connection was lost.

    Args:
        url: `nats://host:4222`, `tls://…`, several of one cluster as a list or with commas between them; or
            `amqp://host:5672/vhost`, `amqps://…` for RabbitMQ.
        stream: the stream's name; of RabbitMQ an exchange's.
        name: what people call it; grants, records and the outbox know it by this.
        auth: `Secret(…)` for a token, or `("user", Secret(…))`.
        credentials: the path of a NATS credentials file (a JWT with its seed).
        tls: a context that knows a private authority or has a client certificate.
        timeout_s: seconds for one event, from connecting to the acknowledgement.
        visibility_s: seconds that a look-up may lag behind the stream.
        inbox_prefix: of the subjects for replies, where the server restricts them.

    Raises:
        UsageError: an argument is wrong.
    """

    operations: ClassVar[tuple[str, ...]] = (VERB,)

    def __init__(
        self,
        url: str | Iterable[str],
        *,
        stream: str,
        name: str = "events",
        auth: Auth = None,
        credentials: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
        visibility_s: float = 0.0,
        inbox_prefix: str = "_INBOX",
    ) -> None:
        self.name = keys.name(name, "the recipient's name")
        kind, urls = urls_of(url)
        self.stream = stream_of(stream) if kind == "nats" else exchange_of(stream)
        self.timeout_s = keys.seconds(timeout_s, "timeout_s", positive=True)
        self.visibility_s = keys.seconds(visibility_s, "visibility_s")
        self.settings = Settings(recipient=self.name, visibility_s=self.visibility_s)
        self._shown = f"Events({', '.join(map(_shown, urls))!r}, stream={self.stream!r}, name={self.name!r})"
        _extra(kind)
        place = Place(urls=urls, auth=auth, credentials=credentials, tls=tls, inbox_prefix=inbox_prefix)
        if kind == "nats":
            from counterfoil.recipients.events.jetstream import JetStream

            self.broker: Broker = JetStream(place, self.stream, connect_s=self.timeout_s)
        else:
            if credentials is not None:
                raise UsageError("credentials are NATS's own", hint="give RabbitMQ's as auth=(user, Secret(…))")
            from counterfoil.recipients.events.rabbit import Rabbit

            self.broker = Rabbit(place, self.stream, connect_s=self.timeout_s)
        # Who forgets to close it leaves no connection behind either.
        when_collected(self, self.broker.close)

    def __repr__(self) -> str:
        return self._shown

    def publish(
        self, subject: str, payload: Any, *, headers: Mapping[str, str] | Iterable[tuple[str, str]] | None = None
    ) -> Operation:
        """Make an event; nothing is sent.

        Args:
            subject: where to, without wildcards; of RabbitMQ the routing key.
            payload: bytes as they are, a text in UTF-8, or a JSON value. It is copied now.
            headers: names and values; they are copied now.

        Returns:
            The operation. Its proof is `{"stream", "seq", "duplicate"}`.

        Raises:
            UsageError: a part of it cannot be sent as it is.
        """
        return Operation(self, messages.made(subject, payload, headers))

    def restore(self, serialised: Mapping[str, Any]) -> Operation:
        """Make an operation of what `Operation.serialised` returned, perhaps in another process.

        Raises:
            UsageError: it belongs to another recipient or stream, was made by a newer version, or is damaged.
        """
        try:
            name, verb, form, arguments = (serialised[key] for key in ("recipient", "operation", "format", "arguments"))
            if form != FORMAT:
                raise UsageError(
                    f"the operation has format {form!r}, this version knows {FORMAT}",
                    hint="upgrade counterfoil; it was not sent",
                    code="operation-too-new",
                )
            if name != self.name or verb != VERB:
                raise UsageError(f"{self.name!r} has no operation {verb!r} of recipient {name!r}")
            if arguments["stream"] != self.stream:
                raise UsageError(
                    f"the event is for stream {arguments['stream']!r}, this is {self.stream!r}", code="other-stream"
                )
            return Operation(self, messages.restored(arguments))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"this is no serialised operation: {type(error).__name__}", code="bad-operation") from None

    def diagnose(self) -> list[tuple[str, str, str, str]]:
        """Look at the stream now, and say what its promises rest on; nothing is published. Blocking.

        Returns:
            Findings: level (`ok`, `warning`, `error`), subject, what was found and means, and how to mend it. How often
            the servers sync is not among them: it is not to be learnt over this protocol.

        Raises:
            UsageError: the broker is not NATS.
            RecipientError: it could not be asked.
        """
        look = getattr(self.broker, "diagnose", None)
        if look is None:
            raise UsageError("only streams of NATS can be looked at", code="not-nats")
        found: list[tuple[str, str, str, str]]
        found = threads.Running(look(deadline=time.monotonic() + self.timeout_s)).result()
        return found

    def close(self) -> None:
        """Cut the connections; what is in flight ends as uncertain. Another event makes new ones."""
        self.broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _shown(url: str) -> str:
    return f"{url.partition('://')[0]}://{peer_of(url)}"


def _extra(kind: str) -> None:
    module, extra = {"nats": ("nats", "nats"), "rabbitmq": ("aio_pika", "rabbitmq")}[kind]
    if importlib.util.find_spec(module) is None:
        raise UsageError(
            f"events of this kind need the extra `{extra}`",
            hint=f"pip install 'counterfoil[{extra}]'",
            code="missing-extra",
        )

"""Asking the stream: messages, each put only where it is expected, and looks that prove how far they reach.

A replica may lag behind, and the one that answers a look is not chosen by us. So a look says up to which sequence its
replica knew the stream, and is repeated until that is far enough.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from counterfoil.errors import LedgerUnavailable
from counterfoil.ledgers.jetstream import troubles
from counterfoil.ledgers.jetstream.link import CONNECT_S, Answer, Link, Lost, Unreachable, Volley
from counterfoil.ledgers.jetstream.messages import Message
from counterfoil.ledgers.jetstream.place import Place
from counterfoil.ledgers.jetstream.stretch import Stretch
from counterfoil.ledgers.jetstream.subjects import Subjects
from counterfoil.ledgers.jetstream.troubles import Said
from counterfoil.nats_wire import headers

# A server that does not answer for so long is taken for stuck, and the next one is asked.
PATIENCE_S: Final = 3.0
_LOOK_S: Final = 1.0
_PAUSE_S: Final = 0.05
_LAG_S: Final = 0.01
# The server answers for 1024 subjects at most.
_SUBJECTS_MAX: Final = 1000
_PAGE_BYTES: Final = 4 << 20
# A server that gets more than it takes ends the connection, and headers count.
_HEADERS_BYTES: Final = 512
_CONNECT_LEAST_S: Final = 0.1


class Put(msgspec.Struct, frozen=True, kw_only=True):
    """A message to publish.

    Args:
        subject: where.
        data: its payload.
        expected: the sequence of the last message on the subject, 0 for none; otherwise it is refused.
        over: the filter that `expected` is about instead of the subject.
        ends: it may make others void: a tombstone, a retirement, another generation.
    """

    subject: str
    data: bytes
    expected: int
    over: str | None = None
    ends: bool = True


class Sending:
    """Messages on their way, each with what was answered to it."""

    def __init__(self, store: Store, many: Sequence[Put], *, deadline: float) -> None:
        self._store = store
        self._many = many
        self._deadline = deadline
        self._before = store.seen
        self._said: list[Said | None] = [None] * len(many)
        self._link: Link | None = None
        self._volley = Volley(self._heard)

    def begin(self, link: Link) -> None:
        """Publish them."""
        self._link, store = link, self._store
        most = store.server["max_payload"] - _HEADERS_BYTES
        for number, what in enumerate(self._many):
            if len(what.data) > most:
                self._said[number] = Said(text="too large", too_large=True)
            else:
                link.publish(what.subject, what.data, head=store.head(what), volley=self._volley, number=number)

    def unsent(self, text: str) -> None:
        """Say that none of them was published, and why."""
        self._said = [Said(text=text)] * len(self._many)

    async def answers(self) -> list[Said]:
        """Return what was answered to each."""
        text = ""
        try:
            await self._volley.over(max(0.0, self._deadline - time.monotonic()))
        except Lost as lost:
            await self._store.drop(self._link)
            text = str(lost)
        return [Said(unknown=True, text=text) if said is None else said for said in self._said]

    def _heard(self, number: int, answer: Answer) -> None:
        """Understand an answer as it comes: only so are they in the order of the stream."""
        store = self._store
        said = troubles.said(answer.data, status=answer.status, stream=store.subjects.stream)
        if said.sequence:
            if said.sequence <= self._before:
                store.went_back = f"it gave out position {said.sequence} again, after {self._before}"
                said = Said(unknown=True, text=store.went_back)
            else:
                store.seen = max(store.seen, said.sequence)
                if not self._many[number].ends:
                    said = Said(sequence=said.sequence, since=store.stretch.took(said.sequence))
        self._said[number] = said


class Store:
    """One stream and the connection to it. All methods run on one loop.

    Args:
        place: where the servers are.
        subjects: the stream's subjects.
    """

    def __init__(self, place: Place, subjects: Subjects) -> None:
        self.subjects = subjects
        # The highest sequence that this process knows to be there.
        self.seen = 0
        # Why this cannot be the stream that it was, or None.
        self.went_back: str | None = None
        # Which stream this process knows: when it was made, and the acceptance that made it good.
        self.created = ""
        self.accepted = 0
        # What needs no look, as long as nobody else publishes.
        self.stretch = Stretch()
        self._first = self._head("0", None)
        self._place = place
        self._next = 0
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self.server: dict[str, Any] = {}

    def forgot(self, epoch: str) -> None:
        """Note that the stream does not know a life that it has acknowledged."""
        self.went_back = self.went_back or f"it does not know owner {epoch} any more: it was made again, or purged"

    def head(self, what: Put) -> bytes:
        """Return the headers of a message."""
        if not what.expected and what.over is None:
            return self._first
        return self._head(str(what.expected), what.over)

    def _head(self, expected: str, over: str | None) -> bytes:
        pairs = [("Nats-Expected-Stream", self.subjects.stream), ("Nats-Expected-Last-Subject-Sequence", expected)]
        if over is not None:
            pairs.append(("Nats-Expected-Last-Subject-Sequence-Subject", over))
        return headers(pairs)

    async def put(self, what: Put, *, deadline: float) -> Said:
        """Publish until there is an answer. After a lost one `taken` may mean that it was ours.

        Raises:
            LedgerUnavailable: none by the deadline; `CommitUnknown` where the message may be there.
        """
        maybe = False
        while True:
            (answer,) = await self.put_each([what], deadline=deadline)
            maybe = maybe or answer.unknown
            if answer.sequence or answer.taken or answer.too_large:
                return answer
            if time.monotonic() + _PAUSE_S >= deadline:
                raise troubles.unknown(answer.text) if maybe else troubles.unavailable(answer.text)
            await asyncio.sleep(_PAUSE_S)

    async def put_each(self, many: Sequence[Put], *, deadline: float) -> list[Said]:
        """Publish each once, in order, over one connection, and return what was answered to each."""
        return await (await self.send(many, deadline=deadline)).answers()

    async def send(self, many: Sequence[Put], *, deadline: float) -> Sending:
        """Publish each once, in order; when this returns they are on their way, and others may follow."""
        sending = Sending(self, many, deadline=min(time.monotonic() + PATIENCE_S, deadline))
        try:
            sending.begin(await self.link(deadline))
        except Unreachable as error:
            sending.unsent(str(error))
        return sending

    async def snapshot(self, subjects: Collection[str], *, floor: int = 0, deadline: float) -> dict[str, Message]:
        """Return the last message of each subject that has one, as of a moment at which `floor` was there.

        Raises:
            LedgerUnavailable: no replica knew that by the deadline.
        """
        found: dict[str, Message] = {}
        every = list(dict.fromkeys(subjects))
        for start in range(0, max(1, len(every)), _SUBJECTS_MAX):
            # The generation is always there, so that there is an answer.
            some = [self.subjects.generation, *every[start : start + _SUBJECTS_MAX]]
            found.update(await self._snapshot(some, floor, deadline))
        return found

    async def _snapshot(self, subjects: list[str], floor: int, deadline: float) -> dict[str, Message]:
        while True:
            *messages, end = await self._direct({"multi_last": subjects}, deadline)
            reached = int((end.headers or {}).get("Nats-UpTo-Sequence", 0))
            if reached and reached >= floor:
                self.seen = max(self.seen, reached)
                return {message.subject: message for message in map(_message, messages)}
            await _pause(deadline, f"the replica that answers has not reached {floor} yet")

    async def page(self, where: str, after: int, *, limit: int, deadline: float) -> list[Message]:
        """Return the next messages behind a position that match a filter, in order, as one replica knows them."""
        question = {"batch": limit, "max_bytes": _PAGE_BYTES, "seq": after + 1, "next_by_subj": where}
        *messages, end = await self._direct(question, deadline)
        found = [_message(message) for message in messages]
        if end.status not in ("204", "404"):
            raise troubles.unavailable(f"a page was answered with status {end.status}")
        return found

    async def last(self, where: str, *, deadline: float) -> int:
        """Return the sequence of the last message that matches a filter as the stream's leader knows it, or 0."""
        answer = await self.api(f"STREAM.MSG.GET.{self.subjects.stream}", {"last_by_subj": where}, deadline=deadline)
        return int(answer["message"]["seq"]) if "message" in answer else 0

    async def api(self, name: str, question: Any, *, deadline: float) -> dict[str, Any]:
        """Ask the JetStream API something that may be asked again; errors are in the answer.

        Raises:
            LedgerUnavailable: no answer by the deadline.
        """
        while True:
            patience_s = min(PATIENCE_S, max(0.0, deadline - time.monotonic()))
            link = None
            try:
                link = await self.link(deadline)
                (message,) = await link.ask(f"$JS.API.{name}", msgspec.json.encode(question), patience_s=patience_s)
            except (Lost, Unreachable) as error:
                await self.drop(link)
                text = str(error)
            else:
                if message.status is None:
                    answer: dict[str, Any] = msgspec.json.decode(message.data)
                    if answer.get("error", {}).get("code") != 503:
                        return answer
                text = "JetStream is not there"
            await _pause(deadline, text)

    async def _direct(self, question: dict[str, Any], deadline: float) -> list[Answer]:
        subject = f"$JS.API.DIRECT.GET.{self.subjects.stream}"
        silent = 0
        while True:
            patience_s = min(_LOOK_S, max(0.0, deadline - time.monotonic()))
            link = None
            try:
                link = await self.link(deadline)
                messages = await link.ask(subject, msgspec.json.encode(question), patience_s=patience_s, many=True)
            except (Lost, Unreachable) as error:
                # A replica that is stuck was asked; another one may be next. Our own server may be stuck, too.
                silent += 1
                if silent > 1 or (link is not None and not link.open):
                    await self.drop(link)
                text = str(error)
            else:
                status = messages[-1].status
                # Nothing found is an answer about a filter; where the generation is asked for, the replica lacks it.
                if status == "204" or (status == "404" and "multi_last" not in question):
                    return messages
                text = f"the stream does not answer: status {status}"
            await _pause(deadline, text)

    async def link(self, deadline: float) -> Link:
        """Return the connection, a new one if the last has ended.

        Raises:
            Unreachable: no server can be had.
        """
        if self._link is not None and self._link.open:
            return self._link
        async with self._connecting:
            if self._link is not None and self._link.open:
                return self._link
            trouble: Unreachable | None = None
            for _ in self._place.servers:
                url = self._place.servers[self._next % len(self._place.servers)]
                link = Link()
                try:
                    timeout_s = max(_CONNECT_LEAST_S, min(CONNECT_S, deadline - time.monotonic()))
                    await link.connect(self._place, url, timeout_s=timeout_s)
                except Unreachable as error:
                    trouble = error
                    self._next += 1
                    if time.monotonic() >= deadline:
                        break
                    continue
                self._link = link
                self.stretch.broke()
                self.server = dict(link.server)
                return link
            raise trouble or Unreachable("there is no server")

    async def drop(self, link: Link | None) -> None:
        """Close a connection whose server does not answer; the next one goes to the next server."""
        if link is not None and link is self._link:
            self._link = None
            self._next += 1
            await link.close()

    async def close(self) -> None:
        """Close the connection."""
        if self._link is not None:
            with suppress(LedgerUnavailable):
                await self._link.close()
            self._link = None


async def _pause(deadline: float, text: str) -> None:
    pause_s = _LAG_S if "reached" in text else _PAUSE_S
    if time.monotonic() + pause_s >= deadline:
        raise troubles.unavailable(text)
    await asyncio.sleep(pause_s)


def _message(answer: Answer) -> Message:
    said = answer.headers or {}
    return Message(said["Nats-Subject"], int(said["Nats-Sequence"]), answer.data)

"""Groups of appends on JetStream: they overlap, keep the order of a run, and are told also where something is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from counterfoil.errors import CommitUnknown
from counterfoil.ledgers.jetstream import store
from tests.ledgers.postgres_support import opened, until
from tests.ledgers.support import entry, slots_of
from tests.servers.nats import NatsCluster
from tests.servers.proxy import Act, Piece, Proxy, lose_reply, lose_request
from tests.support import PATIENCE_S

MANY = 300
ROUNDS = 8


@pytest.fixture
def proxy(nats: NatsCluster) -> Iterator[Proxy]:
    with Proxy(nats.nodes[0].port) as between:
        yield between


@pytest.fixture
def ledger(proxy: Proxy, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A ledger behind the proxy, on a stream of its own."""
    stream = f"groups-{abs(hash(request.node.name)):x}"
    made: Any = opened(f"nats://127.0.0.1:{proxy.port}/{stream}?allow_lazy_sync=1&timeout=60&beat=60")
    yield made
    proxy.rule = None
    proxy.resume()
    made.close()


class Told:
    """Collects replies, and says when all have come."""

    def __init__(self, expected: int) -> None:
        self.replies: dict[Any, Any] = {}
        self.batches = 0
        self._expected = expected
        self._all = threading.Event()

    def __call__(self, replies: list[tuple[object, Any]]) -> None:
        self.batches += 1
        for token, reply in replies:
            assert token not in self.replies, "told twice"
            self.replies[token] = reply
        if len(self.replies) == self._expected:
            self._all.set()

    def has(self, count: int) -> bool:
        """Whether so many have come."""
        return len(self.replies) == count

    def wait(self) -> list[Any]:
        """The replies, in the order of submission."""
        assert self._all.wait(PATIENCE_S)
        return [self.replies[number] for number in range(self._expected)]


def submit(ledger: Any, told: Told, numbers: range, slot: str = "s{}") -> None:
    for number in numbers:
        ledger.submit(entry(slot.format(number)), settle=False, token=number, deliver=told)


@pytest.mark.rule("L9", "L3")
@pytest.mark.parametrize("lost", ["nothing", "answers", "messages"])
def test_a_runs_records_are_in_the_order_of_submission_whatever_is_lost_on_the_way(ledger, proxy, lost):
    ledger.append(entry("before"))
    if lost != "nothing":
        lose = lose_reply if lost == "answers" else lose_request
        proxy.rule = lose(rb"HPUB [^ ]+record", times=2)
    told = Told(MANY)
    submit(ledger, told, range(MANY))
    positions = [record.position for record in told.wait()]
    assert positions == sorted(positions)
    assert slots_of(ledger) == ["before", *(f"s{number}" for number in range(MANY))]
    assert len(ledger._run(ledger._reader.messages("n", "run", 0))) == MANY + 1
    assert told.batches < MANY


@pytest.mark.rule("L9", "L3")
def test_what_must_be_published_again_goes_before_what_was_submitted_meanwhile(ledger, proxy):
    told = Told(2 * ROUNDS)
    for first in range(0, 2 * ROUNDS, 2):
        ledger.append(entry(f"before{first}"))
        proxy.rule = lose_request(rb"HPUB [^ ]+record", times=1)
        submit(ledger, told, range(first, first + 1))
        until(partial(waits_or_is_told, ledger, told, first))
        submit(ledger, told, range(first + 1, first + 2))
        until(partial(told.has, first + 2))
    positions = [record.position for record in told.wait()]
    assert positions == sorted(positions)


def waits_or_is_told(ledger: Any, told: Told, before: int) -> bool:
    return bool(ledger._writer._again) or told.has(before + 1)


def sent(proxy: Proxy, subject: bytes) -> bool:
    return subject in proxy.sent


@pytest.mark.rule("L9", "L1")
def test_the_next_group_is_published_while_the_answers_to_the_last_are_on_their_way(ledger, proxy, monkeypatch):
    ledger.append(entry("before"))
    monkeypatch.setattr(store, "PATIENCE_S", PATIENCE_S)
    answered = threading.Event()

    def keep_answers(piece: Piece) -> Act:
        if not piece.request:
            assert answered.wait(PATIENCE_S)
        return Act.PASS

    proxy.rule = keep_answers
    told = Told(2)
    for number in range(2):
        submit(ledger, told, range(number, number + 1))
        subject = ledger._store.subjects.record("n", "run", f"s{number}").encode()
        until(partial(sent, proxy, subject))
    assert told.replies == {}
    answered.set()
    first, second = told.wait()
    assert first.position < second.position


@pytest.mark.rule("L3")
def test_a_fault_that_nobody_foresaw_is_told_as_unknown(ledger, monkeypatch, caplog):
    async def broken(batch: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ledger._intake, "_commit", broken)
    told = Told(1)
    submit(ledger, told, range(1))
    (reply,) = told.wait()
    assert isinstance(reply, CommitUnknown)
    assert "ended without saying how" in caplog.text

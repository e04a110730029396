"""What a lone caller's append does to save work, and that it falls back on the whole where that does not do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from counterfoil.errors import OwnerRetired
from counterfoil.ledgers.postgres import writer
from counterfoil.ledgers.postgres.connections import Connection
from counterfoil.protocol.records import EFFECT
from tests.ledgers.postgres_support import Doing, opened
from tests.ledgers.support import entry

_schemas = count(1)


@pytest.fixture
def url(shared_database: str) -> str:
    """A ledger of its own."""
    return f"{shared_database}?schema=lone_{next(_schemas)}&pool=1"


@pytest.fixture
def ledger(url: str) -> Iterator[Any]:
    made = opened(url)
    yield made
    made.close()


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries each call of the whole function had."""
    calls: list[int] = []
    ask = writer.ask

    def asked(connection: Any, statement: bytes, entries: Any, **more: Any) -> Any:
        calls.append(len(entries))
        return ask(connection, statement, entries, **more)

    monkeypatch.setattr(writer, "ask", asked)
    return calls


def kept(ledger: Any) -> int:
    """How many statements the session of the only connection keeps."""
    with ledger.pool.take() as connection:
        return int(connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()[0])


def decision(slot: str, epoch: str) -> Any:
    return entry(slot, epoch, kind=EFFECT, phase="intent", decision=True)


@pytest.mark.rule("L1")
def test_a_lone_append_asks_the_whole_function_only_where_it_must(ledger: Any, whole: list[int]) -> None:
    epoch = ledger.register("me")
    assert ledger.append(decision("first", epoch)).slot == "first"
    assert whole == [1]  # it made the run
    ours = ledger.append(decision("second", epoch))
    fact = ledger.append(entry("third", epoch))
    assert whole == [1]
    assert [record.position for record in ledger.read("n", "run")][1:] == [ours.position, fact.position]
    again = ledger.append(decision("second", epoch))
    assert (again.position, again.append_id) == (ours.position, ours.append_id)
    assert whole == [1, 1]


@pytest.mark.rule("L7", "L8")
def test_a_lone_append_decides_behind_the_lock_of_its_owner(ledger: Any, url: str) -> None:
    epoch = ledger.register("me")
    ledger.append(decision("first", epoch))
    with ledger.pool.spare() as retiring:
        retiring.execute("BEGIN")
        retiring.execute(f"SELECT {ledger.quoted}.retire(%s, NULL)".encode(), (epoch,))
        late = Doing(lambda: ledger.append(decision("late", epoch)))
        assert late.lasts(0.2)
        retiring.execute("COMMIT")
    with pytest.raises(OwnerRetired):
        late.result()
    assert ledger.append(entry("fact", epoch)).slot == "fact"
    assert [record.slot for record in ledger.read("n", "run")] == ["first", "fact"]


def test_a_session_keeps_what_is_asked_often(ledger: Any) -> None:
    epoch = ledger.register("me")
    for number in range(20):
        ledger.append(entry(f"s{number}", epoch))
    assert kept(ledger) == 2


@pytest.mark.parametrize("forgotten", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_a_session_that_forgets_loses_nothing(ledger: Any, forgotten: str) -> None:
    epoch = ledger.register("me")
    ledger.append(entry("first", epoch))
    ledger.append(entry("second", epoch))
    with ledger.pool.take() as connection:
        connection.execute(forgotten)
    assert ledger.append(entry("third", epoch)).slot == "third"
    assert [record.slot for record in ledger.read("n", "run")] == ["first", "second", "third"]
    # Who forgets once may be a pooler: nothing more is kept there.
    assert kept(ledger) == 0


def test_behind_a_pooler_nothing_is_kept(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def pooled(_connection: Connection) -> bool:
        return False

    monkeypatch.setattr(Connection, "direct", pooled)
    epoch = ledger.register("me")
    for number in range(3):
        ledger.append(entry(f"s{number}", epoch))
    assert kept(ledger) == 0


def test_an_interrupt_while_a_statement_is_prepared_is_passed_on_afterwards(
    ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = ledger.register("me")
    collect: Callable[..., bool] = Connection._collect
    interrupts = [KeyboardInterrupt]

    def interrupted(connection: Connection, answers: list[Any]) -> bool:
        done = collect(connection, answers)
        if interrupts:
            raise interrupts.pop()
        return done

    monkeypatch.setattr(Connection, "_collect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ledger.append(entry("first", epoch))
    assert [record.slot for record in ledger.read("n", "run")] == ["first"]

"""Staging (X1, X2): an intent exists exactly where the application's own row does."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import apsw
import pytest

from counterfoil import (
    UNASKABLE,
    AsyncOutbox,
    Intent,
    NameConflict,
    NotSerializable,
    Outbox,
    Recipient,
    StagedIntent,
    UsageError,
)
from counterfoil.outbox.intents import OPERATION_BYTES_MAX
from tests.outbox.shop import FileShop, Shop

loose = Recipient("loose")


@loose.operation
def put(ctx: Any, value: Any) -> None: ...


@pytest.mark.rule("X1", "T2", "T3")
def test_an_intent_commits_with_the_row(shop: Shop) -> None:
    with shop.transaction() as connection:
        connection.execute("INSERT INTO orders (id) VALUES ('o1')")
        staged = shop.outbox.stage(connection, shop.operation("bo"), key="o1")
        assert shop.outbox.receipt("o1") is None
    assert staged == StagedIntent(staged.effect_id, "o1")
    found = shop.receipt("o1")
    assert (found.state, found.effect_id, found.outcome) == ("pending", staged.effect_id, None)


@pytest.mark.rule("X1", "T2")
def test_a_rollback_leaves_no_intent(shop: Shop) -> None:
    with shop.connected() as connection:
        connection.execute(shop.begin)
        shop.outbox.stage(connection, shop.operation("bo"), key="o1")
        connection.execute("ROLLBACK")
    assert shop.outbox.receipt("o1") is None
    assert shop.order("o1")


@pytest.mark.rule("T2", "X1")
def test_a_savepoint_that_is_rolled_back_takes_its_intents_along(shop: Shop) -> None:
    with shop.transaction() as connection:
        shop.outbox.stage(connection, shop.operation("bo"), key="kept", lane="L")
        connection.execute("SAVEPOINT inner_part")
        shop.outbox.stage(connection, shop.operation("al"), key="gone", lane="L")
        connection.execute("ROLLBACK TO inner_part")
        shop.outbox.stage(connection, shop.operation("cy"), key="next", lane="L")
    assert shop.outbox.receipt("gone") is None
    shop.dispatch()
    # No gap stands where the place of the intent was that is gone.
    assert [to for _, to in shop.box.log] == ["bo", "cy"]


@pytest.mark.rule("X1")
def test_autocommit_is_refused(shop: Shop) -> None:
    with shop.connected() as connection, pytest.raises(UsageError, match="no open transaction") as caught:
        shop.outbox.stage(connection, shop.operation("bo"), key="o1")
    assert caught.value.code == "no-transaction"
    assert caught.value.hint
    assert shop.outbox.receipt("o1") is None


@pytest.mark.rule("X1")
def test_a_deferred_transaction_that_has_read_is_refused_and_stays_usable(file: FileShop) -> None:
    with file.connected() as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM orders").fetchall()
        with pytest.raises(UsageError, match="has read already") as caught:
            file.outbox.stage(connection, file.operation("bo"), key="o1")
        assert "BEGIN IMMEDIATE" in caught.value.hint
        connection.execute("INSERT INTO orders (id) VALUES ('o1')")
        file.outbox.stage(connection, file.operation("bo"), key="o1")
        connection.execute("COMMIT")
    assert file.receipt("o1").state == "pending"


@pytest.mark.rule("X1")
def test_a_deferred_transaction_that_has_done_nothing_yet_may_stage(file: FileShop) -> None:
    with file.connected() as connection:
        connection.execute("BEGIN")
        file.outbox.stage(connection, file.operation("bo"), key="o1")
        connection.execute("COMMIT")
    assert file.receipt("o1").state == "pending"


@pytest.mark.rule("X1")
def test_the_implicit_transactions_of_sqlite3_are_transactions(tmp_path: Any) -> None:
    shop = FileShop(tmp_path / "shop.db", "sqlite3")
    connection = sqlite3.connect(shop.path)
    connection.row_factory = sqlite3.Row
    with pytest.raises(UsageError, match="no open transaction"):
        shop.outbox.stage(connection, shop.operation("bo"), key="o1")
    with connection:
        connection.execute("INSERT INTO orders (id) VALUES ('o1')")
        shop.outbox.stage(connection, shop.operation("bo"), key="o1")
    connection.close()
    assert shop.receipt("o1").state == "pending"
    shop.close()


HOSTILE = {
    "NUL": "a\0b",
    "NUL in a name": {"a\0": 1},
    "lone surrogate": "\ud800",
    "NaN": float("nan"),
    "infinity": float("inf"),
    "2**63": 2**63,
    "bytes": b"x",
    "a set": {1},
    "a tuple in a list": [(1, 2)],
    "number as name": {1: 2},
    "10 MB": "x" * 10_000_000,
    "deep": json.loads("[" * 200 + "]" * 200),
}


@pytest.mark.rule("X1", "L5")
def test_hostile_payloads_are_refused_before_any_sql(shop: Shop) -> None:
    with shop.transaction() as connection:
        connection.execute("INSERT INTO orders (id) VALUES ('o1')")
        for name, value in HOSTILE.items():
            with pytest.raises(NotSerializable) as caught:
                shop.outbox.stage(connection, put(value), key="o1")
            assert caught.value.effect_ran == "no", name
        shop.outbox.stage(connection, put(2**63 - 1), key="o1")
    assert shop.orders() == {"o1"}


@pytest.mark.rule("X1")
def test_the_largest_operation_is_kept_as_it_is(lone: Shop) -> None:
    empty = len(
        json.dumps(
            {"recipient": "loose", "operation": "put", "format": 1, "arguments": {"value": ""}}, separators=(",", ":")
        )
    )
    with lone.transaction() as connection:
        lone.outbox.stage(connection, put("x" * (OPERATION_BYTES_MAX - empty)), key="o1")
        with pytest.raises(NotSerializable, match="1048577 bytes"):
            lone.outbox.stage(connection, put("x" * (OPERATION_BYTES_MAX - empty + 1)), key="o2")


@pytest.mark.rule("X1", "X2", "L13")
def test_wrong_arguments_are_refused_before_any_sql(lone: Shop) -> None:
    with lone.transaction() as connection:
        for given, says in WRONG:
            what = {"connection": connection, "operation": lone.operation("bo"), "key": "o1", **given}
            with pytest.raises(UsageError, match=says):
                lone.outbox.stage(what.pop("connection"), what.pop("operation"), **what)
        connection.execute("INSERT INTO orders (id) VALUES ('o1')")
    assert lone.orders() == {"o1"}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"key": None}, "needs a key"),
    ({"key": ""}, "must not be empty"),
    ({"key": "a\0b"}, "control character"),
    ({"key": "e\u0301"}, "NFC"),
    ({"key": "x" * 256}, "255 at most"),
    ({"key": 7}, "must be a str"),
    ({"lane": ""}, "must not be empty"),
    ({"lane": 7}, "must be a str"),
    ({"not_before": "now"}, "seconds since 1970"),
    ({"not_before": float("nan")}, "no time"),
    ({"not_before": -1}, "no time"),
    ({"not_before": True}, "seconds since 1970"),
    ({"not_before": 20.0, "expires_at": 20.0}, "never be sent"),
    ({"policy": "never"}, "is no policy"),
    ({"policy": "at-least-once-keyed"}, "allows reconcile-first"),
    ({"operation": "send"}, "takes an operation"),
    ({"operation": put}, "call it with its arguments"),
    ({"connection": object()}, "no connection"),
]


@pytest.mark.rule("X2")
def test_the_same_key_for_an_equal_operation_is_the_same_intent(shop: Shop) -> None:
    first = shop.order("o1", to="bo", lane="L")
    with shop.transaction() as connection:
        again = shop.outbox.stage(connection, shop.operation("bo"), key="o1", lane="L")
        other = shop.outbox.stage(connection, shop.operation("al"), key="o2", lane="L")
    assert again.effect_id == first != other.effect_id
    shop.dispatch()
    assert [to for _, to in shop.box.log] == ["bo", "al"]
    with shop.transaction() as connection:
        assert shop.outbox.stage(connection, shop.operation("bo"), key="o1").effect_id == first
    shop.dispatch()
    assert shop.box.sends("bo") == 1


@pytest.mark.rule("X2")
def test_a_key_that_was_staged_for_another_operation_is_refused_and_the_transaction_stays_usable(shop: Shop) -> None:
    shop.order("o1", to="bo")
    with shop.transaction() as connection:
        with pytest.raises(NameConflict, match="another operation"):
            shop.outbox.stage(connection, shop.operation("al"), key="o1")
        connection.execute("INSERT INTO orders (id) VALUES ('o2')")
    assert shop.orders() == {"o1", "o2"}
    shop.dispatch()
    assert [to for _, to in shop.box.log] == ["bo"]


@pytest.mark.rule("X2")
def test_ids_are_derived_from_namespace_and_key(lone: Shop) -> None:
    mine = lone.order("o1")
    for namespace, same in (("other", False), (None, True)):
        with lone.transaction() as connection:
            other = Outbox(lone.url, namespace=namespace)
            staged = other.stage(connection, lone.operation("o1"), key="o1")
            other.close()
        assert (staged.effect_id == mine) is same
    assert len(mine) == 43
    assert mine.isascii()


@pytest.mark.rule("X2", "L10")
def test_a_pruned_key_is_known_and_never_staged_again(lone: Shop) -> None:
    lone.order("o1", to="bo")
    lone.dispatch()
    before = lone.receipt("o1")
    assert lone.outbox.prune(older_than_s=0, reason="room", by="me") == 1
    assert lone.outbox.prune(older_than_s=0, reason="room", by="me") == 0
    with lone.transaction() as connection:
        lone.outbox.stage(connection, lone.operation("bo"), key="o1")
        with pytest.raises(NameConflict):
            lone.outbox.stage(connection, lone.operation("al"), key="o1")
    lone.dispatch()
    assert [to for _, to in lone.box.log] == ["bo"]
    after = lone.receipt("o1")
    assert (after.state, after.outcome, after.effect_id) == (before.state, before.outcome, before.effect_id)


@pytest.mark.rule("X1", "X2")
def test_many_are_staged_as_one(shop: Shop) -> None:
    with shop.transaction() as connection:
        made = shop.outbox.stage_many(
            connection,
            [
                Intent(shop.operation("a"), key="k1", lane="z"),
                (shop.operation("b"), "k2"),
                (shop.operation("c"), {"key": "k3", "lane": "a"}),
                {"operation": shop.operation("d"), "key": "k4", "lane": "z"},
            ],
        )
        with pytest.raises(UsageError, match="the same key"):
            shop.outbox.stage_many(connection, [(shop.operation("e"), "k5"), (shop.operation("f"), "k5")])
        with pytest.raises(NotSerializable):
            shop.outbox.stage_many(connection, [(shop.operation("e"), "k6"), (put(b""), "k7")])
        for wrong in ("text", 7, [7], [{"operation": 1, "colour": 2}]):
            with pytest.raises(UsageError):
                shop.outbox.stage_many(connection, wrong)  # type: ignore[arg-type]
    assert [one.key for one in made] == ["k1", "k2", "k3", "k4"]
    assert shop.outbox.receipt("k6") is None
    shop.dispatch()
    log = [to for _, to in shop.box.log]
    assert sorted(log) == ["a", "b", "c", "d"]
    assert log.index("a") < log.index("d")


@pytest.mark.rule("X1")
def test_another_database_or_another_library_is_refused(tmp_path: Any) -> None:
    one, two = FileShop(tmp_path / "one.db", "sqlite3"), FileShop(tmp_path / "two.db", "apsw")
    with one.transaction() as connection, pytest.raises(UsageError, match="the outbox is in"):
        two.outbox.stage(connection, one.operation("bo"), key="o1")
    with apsw.Connection(":memory:") as memory, pytest.raises(UsageError, match="a database in memory"):
        two.outbox.stage(memory, one.operation("bo"), key="o1")
    # A connection that was opened behind the ledger's back, by the other library.
    foreign = sqlite3.connect(two.path, isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(UsageError, match="two SQLite libraries on one file") as caught:
        two.outbox.stage(foreign, one.operation("bo"), key="o1")
    assert "?engine=sqlite3" in caught.value.hint
    foreign.close()
    one.close()
    two.close()


@pytest.mark.rule("X1")
def test_a_cursor_is_no_connection(shop: Shop) -> None:
    with shop.transaction() as connection, pytest.raises(UsageError, match="takes a connection, not"):
        shop.outbox.stage(connection.cursor(), shop.operation("bo"), key="o1")


def test_a_ledger_without_a_database_has_no_outbox() -> None:
    with pytest.raises(UsageError, match="has no outbox"):
        Outbox("memory:").migrate()


@pytest.mark.rule("X1")
async def test_the_asyncio_colour_stages_through_blocking_connections(shop: Shop) -> None:
    async with AsyncOutbox(shop.url) as outbox:
        with shop.transaction() as connection:
            staged = await outbox.stage(connection, shop.operation("bo"), key="o1")
            more = await outbox.stage_many(connection, [(shop.operation("al"), "o2")])
        found = await outbox.receipt("o1")
        assert found is not None
        assert found.effect_id == staged.effect_id
        assert [one.key for one in more] == ["o2"]
        with pytest.raises(TimeoutError, match="it is pending"):
            await outbox.wait("o1", timeout_s=0.01)
        with pytest.raises(TimeoutError, match="nothing is staged"):
            await outbox.wait("o7", timeout_s=0.01)


def test_arguments_by_name_are_bound_as_those_by_position() -> None:
    mail = Recipient("mail")

    @mail.operation(reconcile=UNASKABLE)
    def send(ctx: Any, to: Any, subject: str) -> None: ...

    @mail.operation
    def post(to: str) -> None: ...

    post.reconcile(lambda to, subject: None)
    made = send(subject="s", to=("a", "b"))
    assert made == send(("a", "b"), "s")
    assert (made.args, made.arguments) == ((("a", "b"), "s"), {"to": ["a", "b"], "subject": "s"})
    for wrong in ({"to": "a"}, {"to": "a", "subject": "s", "cc": "c"}, {}):
        with pytest.raises(UsageError):
            send(**wrong)
    with pytest.raises(UsageError, match="does not take what the operation takes"):
        post(to="a")

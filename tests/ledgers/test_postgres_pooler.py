"""The PostgreSQL ledger behind PgBouncer in transaction mode: no promise rests on the state of a session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from counterfoil import Accepted, AsyncRuntime, Runtime
from counterfoil.ports.ledger import Ledger
from counterfoil.testing.conformance import LedgerConformance
from tests.ledgers.postgres_support import opened
from tests.servers.finding import Missing
from tests.servers.finding import pgbouncer as program
from tests.servers.pgbouncer import PgBouncer

pytestmark = pytest.mark.rule("L1", "L3", "L16")

_schemas = count(1)

try:
    program()
except Missing as absent:
    pytest.skip(str(absent), allow_module_level=True)


def behind(pgbouncer: PgBouncer, database: str) -> str:
    """The address of a database behind the pooler; nothing can be heard there, so it is polled."""
    return f"{pgbouncer.url(database.rpartition('/')[2])}?poll=0.05&beat=0.2"


class TestBehindAPooler(LedgerConformance):
    """The public suite."""

    url: str

    def setup_method(self) -> None:
        """Nothing yet: the pooler is a fixture, which comes later and goes earlier."""

    teardown_method = setup_method

    @pytest.fixture(autouse=True)
    def _while_the_pooler_stands(self, pgbouncer: PgBouncer, shared_database: str) -> Iterator[None]:
        self.url = f"{behind(pgbouncer, shared_database)}&schema=pooler_{next(_schemas)}"
        super().setup_method()
        yield
        super().teardown_method()

    def make_ledger(self) -> Ledger:
        ledger: Ledger = opened(self.url)
        return ledger


def test_many_callers_share_few_server_sessions(pgbouncer: PgBouncer, database: str) -> None:
    url = behind(pgbouncer, database)
    sent: list[str] = []

    def send(ctx: Any) -> str:
        sent.append(ctx.key)
        return str(ctx.key)

    def life(number: int) -> None:
        with Runtime(url) as runtime:
            for n in range(10):
                with runtime.run(f"run-{n}") as run:
                    assert isinstance(run.effect("charge", run=send, reconcile=lambda: None), Accepted)

    lives = [threading.Thread(target=life, args=(number,)) for number in range(6)]
    for one in lives:
        one.start()
    for one in lives:
        one.join()
    assert len(sent) == len(set(sent)) == 10


async def test_a_wait_is_woken_by_polling(pgbouncer: PgBouncer, database: str) -> None:
    url = behind(pgbouncer, database)
    async with AsyncRuntime(url) as one, AsyncRuntime(url) as other, one.run("r") as run:
        waiting = asyncio.create_task(run.wait_for("paid", "1"))
        while not await other.show("r"):  # noqa: ASYNC110 - another process would not tell either
            await asyncio.sleep(0.01)
        assert not waiting.done()
        await other.deliver("r", "paid", "1", {"sum": 7})
        assert await waiting == {"sum": 7}

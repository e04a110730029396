"""SIGKILL in the application's transactions: what was sold is what the receipts say, and nothing was sold twice."""

import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from counterfoil import Dispatcher, Outbox, Runtime
from counterfoil.protocol.legality import RunCheck
from tests.effects.transacting import SENT, mail

ROOT = Path(__file__).resolve().parents[2]


def prepared(url: str) -> None:
    with Runtime(url) as runtime, runtime.run("schema") as run:
        run.transaction("sale", lambda connection: connection.execute("CREATE TABLE sale (name TEXT)") and None)
        Outbox(runtime).migrate()


def sent(url: str) -> list[str]:
    """What goes out for the sales: what was staged with them."""
    SENT.clear()
    with Dispatcher(url, [mail]) as dispatcher:
        assert dispatcher.run_until_idle(timeout_s=60)
    return sorted(SENT)


def transacting(*words: str) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "tests.effects.transacting", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def sold(url: str) -> list[str]:
    def body(connection: sqlite3.Connection) -> list[str]:
        return sorted(name for (name,) in connection.execute("SELECT name FROM sale").fetchall())

    with Runtime(url) as runtime:
        found: list[str] = runtime.run("judge").transaction("sold", body)
    return found


def receipts(url: str) -> list[str]:
    """What the receipts say was sold; the checker must agree with every run."""
    found: list[str] = []
    with Runtime(url) as runtime:
        for view in runtime.runs():
            records = runtime.ledger.read(runtime.namespace, view.run_id)
            assert RunCheck(runtime.namespace, view.run_id, records).findings == []
            if view.run_id not in ("schema", "judge"):
                found += [record.body["result"] for record in runtime.show(view.run_id) if record.phase == "committed"]
    return sorted(found)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("database"))
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.mark.rule("T1", "T2", "T4", "L2", "X2")
def test_killed_before_and_after_a_statement_it_is_sold_once(url: str) -> None:
    prepared(url)
    # Of the statements of two transactions, before and after: all with TRANSACTIONS_IN_FULL=1, else one in five.
    stride = 1 if os.environ.get("TRANSACTIONS_IN_FULL") else 5
    kills = transacting("points", url, "blocking", str(random.randint(1, stride)), str(stride))
    assert kills > 40 // stride
    assert sold(url) == sorted(f"r{number}/{name}" for number in range(1, kills + 2) for name in "ab")
    assert receipts(url) == sold(url) == sent(url)


@pytest.mark.rule("T1", "T2", "T4", "L2", "X2")
def test_killed_at_random_moments_what_is_sold_is_what_the_receipts_say(url: str) -> None:
    prepared(url)
    seed = random.randrange(1 << 30)
    kills = transacting("storm", url, "asyncio", str(seed))
    found = sold(url)
    assert kills > 5, f"seed {seed}"
    assert len(found) > 5, f"seed {seed}"
    assert len(set(found)) == len(found), f"seed {seed}"
    assert receipts(url) == found, f"seed {seed}"
    assert sent(url) == found, f"seed {seed}"

"""`counterfoil simulate`: exit codes, what it prints, and what it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

pytestmark = pytest.mark.rule("N4")

SHOP = """
from counterfoil.testing.recipients import Payee

payee = Payee()
outbox = []


def order(run):
    run.effect("charge", run=payee.charge, reconcile=payee.find)
    return run.wait_for("approval", "7")


def wrong(run):
    run.effect("charge", run=payee.charge, reconcile=lambda: None)


async def mails(run):
    async def mail():
        outbox.append("mail")

    await run.step("mail", mail)


def sent():
    return len(outbox)


class Shop:
    @staticmethod
    def place(run):
        return 1
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    return tmp_path


def simulate(folder: Path, *words: str, code: int = 0) -> str:
    command = [sys.executable, "-c", "import sys; from counterfoil.cli import main; sys.exit(main(sys.argv[1:]))"]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120"}
    done = subprocess.run(
        [*command, "simulate", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_right_body_ends_with_0_and_says_how_much_was_tried(shop: Path) -> None:
    said = simulate(shop, "shop:order", "--deliver", "approval", "7", '"ada"', "--seeds", "20")
    assert said.startswith("order on memory: nothing broke in ")
    assert "crash points" in said
    assert "20 seeds" in said


def test_a_wrong_body_ends_with_1_and_shows_how_it_came_about(shop: Path) -> None:
    said = simulate(shop, "shop:wrong", code=1)
    assert said.startswith("your reconcile for 'charge' did not find \"ch_")
    assert "IS KILLED" in said
    assert "crash points" in said


def test_it_writes_json(shop: Path) -> None:
    found = json.loads(simulate(shop, "shop:wrong", "--json", code=1))
    assert found["ok"] is False
    assert found["mistakes"][0]["code"] == "not-found"
    assert found["trials"]["crash"] >= 3


def test_one_seed_alone_is_tried_again(shop: Path) -> None:
    found = json.loads(simulate(shop, "shop:Shop.place", "--seed", "7", "--json"))
    assert found["trials"] == {"clean": 1, "seed": 1}


def test_a_function_of_the_module_counts_what_was_sent(shop: Path) -> None:
    assert "your step 'mail' sends" in simulate(shop, "shop:mails", "--sent", "sent", code=1)


def test_a_module_may_be_named_as_a_file(shop: Path) -> None:
    assert "nothing broke" in simulate(shop.parent, f"{shop.name}/shop.py:Shop.place", "--seeds", "0")


def test_it_runs_on_a_file_too(shop: Path) -> None:
    assert "on sqlite: nothing broke" in simulate(shop, "shop:Shop.place", "--on", "sqlite", "--seeds", "0")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("shop",), "named module:body"),
        (("shop:nobody",), "'shop' has no function 'nobody'"),
        (("shops:order",), "module 'shops' cannot be imported"),
        (("shop:order", "--deliver", "approval", "7", "ada"), "is no JSON"),
    ],
)
def test_what_cannot_be_understood_ends_with_2(shop: Path, words: tuple[str, ...], says: str) -> None:
    assert says in simulate(shop, *words, code=2)

"""`counterfoil simulate`: exit codes, what it prints, and what it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from counterfoil.testing.notes import TIMES

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


def buggy(ctx):
    return {}["typo"]


def guarded(run):
    try:
        run.effect("charge", run=buggy, reconcile=lambda: None)
    except Exception:
        pass


def verbose(run):
    raise ValueError("a long text " * 30)


class Shop:
    @staticmethod
    def place(run):
        return 1

    @staticmethod
    def refund(run, order):
        return order
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
        timeout=120,
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


def test_a_run_that_never_works_is_named_also_where_the_body_takes_every_error(shop: Path) -> None:
    said = simulate(shop, "shop:guarded", code=1)
    assert said.startswith(
        "your run for 'charge' raised KeyError when nothing goes wrong: KeyError('typo') at shop.py:"
    )


def test_an_error_is_told_in_full_with_its_place_and_what_repeats_is_folded(shop: Path) -> None:
    number = SHOP.split("\n").index('    raise ValueError("a long text " * 30)') + 1
    text = f"your body raises ValueError({'a long text ' * 30!r}) at shop.py:{number} when nothing goes wrong"
    said = simulate(shop, "shop:verbose", code=1)
    assert said.startswith(f"{text}\n")
    assert said.count("its body ends with") == 1
    assert f" ({TIMES}6)\n" in said
    found = json.loads(simulate(shop, "shop:verbose", "--json", code=1))
    assert found["mistakes"][0]["text"] == text


def test_what_a_body_waits_for_is_said_as_an_option(shop: Path) -> None:
    said = simulate(shop, "shop:order", code=1)
    assert said.startswith(
        "your body waits for 'approval' '7', and nobody brings it (say what is delivered: --deliver approval 7 JSON)\n"
    )
    assert "its body waits, and nothing comes" in said
    assert "Waiting(" not in said


def test_it_says_what_was_not_watched(shop: Path) -> None:
    remark = "were not watched: name a function that counts them with --sent"
    (shop / "plain.py").write_text("def body(run):\n    run.step('mail', lambda: 1)\n", encoding="utf-8")
    assert f"sends in steps and in the body {remark}" in simulate(shop, "plain:body", "--seeds", "0")
    said = simulate(shop, "shop:Shop.place", "--seeds", "0")
    assert f"in the body to others than the recipients in the module {remark}" in said
    assert json.loads(simulate(shop, "plain:body", "--seeds", "0", "--json"))["remarks"]
    assert "watched" not in simulate(shop, "shop:Shop.place", "--seeds", "0", "--sent", "sent")


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("x = 1\ny = 1 / 0\n", "cannot be imported: bad.py:2: ZeroDivisionError: division by zero\n"),
        ("def f(:\n", "cannot be imported: bad.py:1: SyntaxError: "),
        ("import nonsuch\n", "cannot be imported: bad.py:1: ModuleNotFoundError: No module named 'nonsuch'\n"),
        ("raise SystemExit(3)\n", "cannot be imported: bad.py:1: SystemExit: 3\n"),
    ],
)
def test_a_module_that_raises_on_import_is_told_with_the_place(tmp_path: Path, module: str, says: str) -> None:
    (tmp_path / "bad.py").write_text(module, encoding="utf-8")
    said = simulate(tmp_path, "bad.py:body", code=2)
    assert said.startswith("counterfoil: module 'bad' ")
    assert says in said
    assert said.count("\n") == 1


def test_a_module_may_be_named_as_a_file(shop: Path) -> None:
    assert "nothing broke" in simulate(shop.parent, f"{shop.name}/shop.py:Shop.place", "--seeds", "0")


def test_it_runs_on_a_file_too(shop: Path) -> None:
    assert "on sqlite: nothing broke" in simulate(shop, "shop:Shop.place", "--on", "sqlite", "--seeds", "0")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("shop",), "named module:body"),
        (("shop:nobody",), "'shop' has no function 'nobody'"),
        (("shop:Shop.refund",), "missing a required argument: 'order' (it is called with a run alone"),
        (("shops:order",), "module 'shops' cannot be imported"),
        (("shop:order", "--deliver", "approval", "7", "ada"), "is no JSON"),
    ],
)
def test_what_cannot_be_understood_ends_with_2(shop: Path, words: tuple[str, ...], says: str) -> None:
    assert says in simulate(shop, *words, code=2)

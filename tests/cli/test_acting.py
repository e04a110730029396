"""What the commands record, refuse, and how they end."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Accepted, EffectUnresolved, Runtime
from counterfoil.ledgers.sqlite import migrations
from tests.cli.terminal import SHOP, Terminal, fill

DECIDE = ["decide", SHOP, "door", "--reason", "saw the log", "--by", "ann", "--expect-version", "2"]


@pytest.mark.rule("N2", "E16")
@pytest.mark.parametrize(
    ("verdict", "happened", "proof"),
    [
        (["--happened", "d_17"], True, "d_17"),
        (["--happened", '{"id": 17}'], True, {"id": 17}),
        (["--happened", "17"], True, 17),
        (["--did-not-happen", "--new-name", "door-2"], False, None),
    ],
)
def test_a_decision_is_recorded(
    shop: Terminal, change: Callable[..., Any], verdict: list[str], happened: bool, proof: Any
) -> None:
    found = shop.json(*DECIDE, "--show-payloads", *verdict)["decision"]
    assert (found["happened"], found["proof"], found["by"], found["reason"]) == (happened, proof, "ann", "saw the log")
    (view,) = change(lambda r: r.effects(state="uncertain"))
    assert (view.decision.happened, view.decision.proof) == (happened, proof)
    assert view.decision.new_name == ("door-2" if not happened else None)


@pytest.mark.rule("N2")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([*DECIDE[:-1], "1", "--did-not-happen"], 4, "changed: it has version 2, you saw 1"),
        ([*DECIDE[:-1], "1", "--did-not-happen"], 4, "; nothing was recorded"),
        ([*DECIDE, "--happened", "x", "--new-name", "y"], 2, "what happened is not sent again"),
        (DECIDE, 2, "--happened PROOF or --did-not-happen"),
        ([*DECIDE, "--happened", "x", "--did-not-happen"], 2, "--happened PROOF or --did-not-happen"),
        ([*DECIDE, "--happened", "null"], 2, "null names nothing"),
        (["decide", SHOP, "door", "--did-not-happen", "--by", "ann", "--expect-version", "2"], 2, "--reason"),
        ([*DECIDE[:4], " ", *DECIDE[5:], "--did-not-happen"], 2, "needs `reason`"),
        (["decide", SHOP, "none", *DECIDE[3:], "--did-not-happen"], 2, "has no effect 'none'"),
        (["decide", SHOP, "charge", *DECIDE[3:], "--did-not-happen"], 2, "only an uncertain one"),
    ],
)
def test_what_cannot_be_decided_is_refused(shop: Terminal, words: list[str], code: int, said: str) -> None:
    assert said in shop(*words, code=code).stderr


@pytest.mark.rule("E18")
def test_evidence_is_settled_by_its_key(shop: Terminal) -> None:
    by_name = {found["effect"]: found for found in shop.json("effects")["effects"]}
    said = ["--source", "webhook"]
    key = by_name["open"]["key"]
    assert shop.json("settle", SHOP, "open", "o1", "--key", key, *said) == {"recorded_as": "outcome"}
    late = shop("settle", SHOP, "door", "d1", "--key", by_name["door"]["key"], *said)
    assert "late evidence" in late.stdout
    assert "late evidence: accepted (attempt 1), via evidence from webhook" in shop("show", SHOP).stdout
    wrong = shop("settle", SHOP, "door", "d1", "--key", "wrong", *said, code=2).stderr
    assert "has the key 'wrong'" in wrong
    assert "`effects --json` has it in the field `key`" in wrong


@pytest.mark.rule("P2")
def test_a_delivery_is_recorded_once(shop: Terminal, change: Callable[..., Any]) -> None:
    words = ["deliver", SHOP, "packed", "7"]
    assert shop.json(*words, '{"by": "bob"}') == {"recorded": True, "begun": True}
    assert shop.json(*words, '{"by": "bob"}') == {"recorded": False, "begun": True}
    other = shop(*words, '{"by": "eve"}', code=4)
    assert "counterfoil deliver by" in other.stderr
    assert change(lambda r: r.run(SHOP).wait_for("packed", "7")) == {"by": "bob"}
    assert "the payload is not JSON" in shop(*words, "text", code=2).stderr
    assert shop("deliver", SHOP, "nothing", "1").stderr == ""


@pytest.mark.rule("P2")
def test_a_delivery_to_a_run_that_has_not_begun_says_so(shop: Terminal, change: Callable[..., Any]) -> None:
    early = shop("deliver", "order-\u202e", "packed", "7")
    assert early.stdout == "delivered\n"
    assert early.stderr == r"delivered; run 'order-\u202e' has not begun yet" + "\n"
    assert shop.json("deliver", "order-9", "packed", "7") == {"recorded": True, "begun": False}
    change(lambda r: r.run("order-9").step("s", lambda: 1))
    assert shop.json("deliver", "order-9", "packed", "7") == {"recorded": False, "begun": True}


@pytest.mark.rule("L10")
def test_a_pruned_run_is_no_trouble_of_the_ledger(url: str) -> None:
    with Runtime(url) as runtime:
        with runtime.run("one") as run:
            run.effect("mail", run=lambda: "m", reconcile=lambda: None)
            run.finish()
        runtime.prune(older_than_s=0)
    assert "was pruned" in Terminal(url)("deliver", "one", "packed", "7", code=2).stderr


@pytest.mark.rule("L10")
def test_pruning_says_what_it_would_do_and_what_it_keeps(url: str) -> None:
    with Runtime(url) as runtime:
        fill(runtime, "kept", finish=True)
        for name in ("one", "two"):
            with runtime.run(name) as run:
                run.effect("mail", run=lambda: "m", reconcile=lambda: None)
                run.finish()
    shop = Terminal(url)
    why = ("--reason", "space", "--by", "me")
    # An act asks for a reason and for who does it (rule N2); looking first does not.
    assert shop("prune", "--older-than", "0", code=2).stdout == ""
    assert shop("prune", *why).stdout == ""
    dry = shop.json("prune", "--older-than", "0", "--dry-run")
    assert dry["pruned"] == ["one", "two"]
    assert list(dry["kept"]) == ["kept"]
    assert shop("prune", "--older-than", "0", "--limit", "1", *why).stdout == "one\n"
    assert shop.json("prune", "--older-than", "0", *why)["pruned"] == ["two"]
    assert [found["state"] for found in shop.json("runs")["runs"]] == ["finished", "pruned", "pruned"]
    assert shop("verify").stdout == ""
    assert "effect mail: accepted" in shop("show", "one").stdout


@pytest.mark.rule("L14")
def test_a_restored_ledger_is_named_and_accepted(shop: Terminal, url: str, tmp_path: Path) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    with sqlite3.connect(path) as old, sqlite3.connect(tmp_path / "backup.db") as backup:
        old.backup(backup)
    old.close()
    backup.close()
    accept = ["accept-restore", "--by", "ann", "--reason", "compared with the statement"]
    unnoticed = shop(*accept, code=2).stderr
    assert "did not notice" in unnoticed
    assert f"--ledger {url} accept-restore --unnoticed --by ann --reason 'compared with the statement'" in unnoticed
    with Runtime(url) as runtime:
        fill(runtime, "later")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.write_bytes((tmp_path / "backup.db").read_bytes())
    assert [found["run"] for found in shop.json("runs")["runs"]] == [SHOP]
    full = f"counterfoil accept-restore --ledger {url} --by YOU --reason WHY"
    assert full in shop("deliver", SHOP, "late", "1", code=3).stderr
    unwell = shop.json("doctor", code=1)["findings"]
    assert [each["subject"] for each in unwell if each["level"] == "error"] == ["generation"]
    assert full in next(each["mend"] for each in unwell if each["level"] == "error")
    assert "who you are" in shop("accept-restore", "--by", " ", "--reason", "x", code=2).stderr
    done = shop(*accept)
    assert done.stdout.startswith("accepted as generation")
    assert done.stdout.endswith(": the ledger takes records again\n")
    assert "asks its recipient first, and is never sent" in done.stderr
    assert shop.json("deliver", SHOP, "late", "1")["recorded"] is True
    with Runtime(url) as runtime, runtime.run(SHOP) as run:
        run.effect("lost-mail", run=lambda: 1 / 0, reconcile=lambda: None)
    assert "restored: the ledger had gone back in time and was accepted" in shop("show", SHOP).stdout
    assert "accepted-restore" in shop("export").stdout
    assert shop.json(*accept, "--unnoticed")["why"] is None


@pytest.mark.rule("L11")
def test_the_schema_is_printed_as_sql_that_makes_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    shop = Terminal(f"sqlite:///{path}")
    sql = shop("migrate", "--sql").stdout
    assert sql == migrations.LEDGER.sql()
    assert not path.exists()
    with sqlite3.connect(path) as connection:
        connection.executescript(sql)
    connection.close()
    assert shop.json("runs") == {"runs": []}


@pytest.mark.rule("L11")
def test_migrate_makes_a_ledger_and_may_be_repeated(tmp_path: Path) -> None:
    shop = Terminal(f"sqlite:///{tmp_path / 'x.db'}")
    namespace = shop.json("migrate")["namespace"]
    assert shop.json("migrate") == {"namespace": namespace}
    assert namespace in shop("migrate").stdout


def test_errors_nobody_expected_are_one_line_too(shop: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("of\x1b[31m all\nthings")

    monkeypatch.setattr(Runtime, "runs", broken)
    result = shop("runs", code=70)
    assert result.stderr.startswith(r"counterfoil: ZeroDivisionError: of\x1b[31m all")
    assert "(a defect of counterfoil: please report it, with what COUNTERFOIL_DEBUG=1 shows)" in result.stderr
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.stderr


def test_usage_is_exit_code_2_for_a_whole_process() -> None:
    command = [sys.executable, "-c", "import sys; from counterfoil.cli import main; sys.exit(main())"]
    for words in (["nonsense"], ["runs", "--nonsense"], ["show"]):
        found = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert found.returncode == 2
        assert found.stdout == ""
        assert "Usage: counterfoil" in found.stderr


@pytest.mark.rule("L11")
@pytest.mark.parametrize("words", [("migrate",), ("outbox", "migrate")])
@pytest.mark.parametrize(
    ("url", "statement"), [("sqlite:///x.db", "BEGIN IMMEDIATE;"), ("postgresql:///shop", "pg_advisory_xact_lock")]
)
def test_the_sql_is_that_of_the_store_in_the_url(words: tuple[str, ...], url: str, statement: str) -> None:
    printed = Terminal(url)(*words, "--sql").stdout
    assert statement in printed
    assert ("outbox" in printed) is (words[0] == "outbox")


def test_evidence_that_a_call_must_verify_first_is_said_to_be_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'effects.db'}"
    with Runtime(url) as runtime, runtime.run("r") as run, pytest.raises(EffectUnresolved):
        run.effect("pay", run=lambda: 1 / 0, reconcile=lambda: None, verify=lambda proof: True)
    desk = Terminal(url)
    (seen,) = desk.json("effects")["effects"]
    said = desk("settle", "r", "pay", "tx-1", "--key", seen["key"], "--source", "webhook").stdout
    assert "the next call of the effect verifies" in said
    with Runtime(url) as runtime, runtime.run("r") as run:
        outcome = run.effect("pay", run=lambda: 1 / 0, reconcile=lambda: None, verify=lambda proof: True)
    assert isinstance(outcome, Accepted)
    assert (str(outcome.proof), outcome.via) == ("tx-1", "evidence")

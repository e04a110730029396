"""The commands `outbox` and `dispatch` (N1, N2): looking, acting, and dispatching as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Outbox, Runtime
from tests.cli.terminal import Terminal
from tests.outbox.shop import FileShop
from tests.support import PATIENCE_S

SECRET = "hunter2"
SAID = ("--by", "ann", "--reason", "looked at it")


@pytest.fixture
def lone(opens: Any) -> Any:
    return opens("apsw")


@pytest.fixture
def desk(lone: FileShop) -> Terminal:
    def lost(ctx: object) -> None:
        raise ConnectionResetError

    lone.box.does[f"lost-{SECRET}"] = lost
    lone.order("lost", to=f"lost-{SECRET}", lane="L")
    lone.order("behind", lane="L")
    lone.order("sent", to=SECRET)
    lone.order("tomorrow", not_before=4e9)
    lone.dispatch()
    return Terminal(lone.url)


@pytest.mark.rule("N1", "X11")
def test_the_overview_says_what_waits_and_what_stands_still(desk: Terminal) -> None:
    found = desk("outbox", code=1)
    assert "needs-operator" in found.stdout
    assert "not-found" in found.stdout
    assert "1 for a person" in found.stderr
    said = desk.json("outbox", code=1)
    assert {(row["recipient"], row["state"], row["count"]) for row in said["depth"]} == {
        ("mail", "needs-operator", 1),
        ("mail", "pending", 2),
    }
    assert said["lanes"][0] | {"since": 0, "head": ""} == {
        "lane": "L",
        "waiting": 2,
        "stuck": "not-found",
        "since": 0,
        "head": "",
    }


@pytest.mark.rule("N1", "N6")
def test_an_intent_is_shown_without_its_payload(desk: Terminal) -> None:
    for words in (
        ("outbox", "show", "lost"),
        ("outbox", "show", "sent"),
        ("outbox", "list"),
        ("outbox", "list", "--state", "accepted"),
    ):
        assert SECRET not in desk(*words).stdout
        assert SECRET not in desk("--json", *words).stdout
    assert SECRET in desk("outbox", "show", "sent", "--show-payloads").stdout
    shown = desk("outbox", "show", "lost")
    assert "needs-operator (not-found)" in shown.stdout
    assert "outbox decide --happened PROOF" in shown.stderr
    assert "outbox decide --did-not-happen" in shown.stderr
    assert "nothing is staged under 'nobody'" in desk("outbox", "show", "nobody", code=2).stderr
    listed = desk.json("outbox", "list", "--state", "needs-operator")["intents"]
    assert [(one["key"], one["reason"]) for one in listed] == [("lost", "not-found")]


@pytest.mark.rule("N2", "X15")
def test_acts_are_recorded_and_stale_versions_refused(desk: Terminal, lone: FileShop) -> None:
    version = desk.json("outbox", "show", "lost")["version"]
    stale = ("--expect-version", str(version - 1))
    now = ("--expect-version", str(version))
    assert "has changed since" in desk("outbox", "decide", "--did-not-happen", *SAID, *stale, "lost", code=4).stderr
    assert "may have been sent" in desk("outbox", "redrive", *SAID, *now, "lost", code=2).stderr
    assert "either" in desk("outbox", "decide", *SAID, *now, "lost", code=2).stderr
    desk("outbox", "reconcile", *SAID, *now, "lost")
    lone.dispatch()
    version = desk.json("outbox", "show", "lost")["version"]
    desk("outbox", "decide", "--happened", "m-1", *SAID, "--expect-version", str(version), "lost")
    shown = desk.json("outbox", "show", "lost")
    assert shown["state"] == "uncertain"
    assert [act["act"] for act in shown["acts"]] == ["reconcile", "decide"]
    lone.dispatch()
    assert desk.json("outbox", "show", "behind")["state"] == "accepted"
    assert desk("outbox").exit_code == 0


@pytest.mark.rule("N2", "X15", "L10")
def test_pausing_draining_and_pruning(desk: Terminal, lone: FileShop) -> None:
    assert "paused" not in desk("outbox", code=1).stdout
    assert "nothing waits for" not in desk("outbox", "pause", *SAID, "mail").stdout
    assert "nothing waits for a recipient of this name" in desk("outbox", "pause", *SAID, "nobody").stdout
    assert desk.json("outbox", "drain", *SAID, "nobody") == {"recipient": "nobody", "state": "drained", "waiting": 0}
    desk("outbox", "resume", *SAID, "nobody")
    assert "paused: recipient mail" in desk("outbox", code=1).stdout
    assert desk.json("outbox", code=1)["paused"] == ["recipient:mail"]
    lone.order("later")
    lone.dispatch()
    assert desk.json("outbox", "show", "later")["state"] == "pending"
    assert "recipient mail is resumed" in desk("outbox", "resume", *SAID, "mail").stdout
    assert "the outbox is drained" in desk("outbox", "drain", *SAID).stdout
    assert "paused: everything" in desk("outbox", code=1).stdout
    desk("outbox", "resume", *SAID)
    lone.dispatch()
    assert desk.json("outbox", "show", "later")["state"] == "accepted"
    assert desk.json("outbox", "prune", "--older-than", "0", *SAID)["pruned"] == 2
    assert desk.json("outbox", "show", "later", "--show-payloads")["arguments"] is None
    assert desk.json("outbox", "show", "later")["arguments"] is None


@pytest.mark.rule("N1", "L11")
def test_looking_makes_no_outbox(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Runtime(url):
        pass
    terminal = Terminal(url)
    assert "there is no outbox in this ledger" in terminal("outbox", code=2).stderr
    assert "CREATE TABLE counterfoil_intent" in terminal("outbox", "migrate", "--sql").stdout
    terminal("outbox", "migrate")
    assert "the outbox is empty" in terminal("outbox").stdout


MODULE = """
import os
from counterfoil import Recipient

mail = Recipient("mail")


@mail.operation
def send(ctx, to: str) -> str:
    with open(os.environ["LOG"], "a") as log:
        print(to, file=log)
    return to


@send.reconcile
def find(ctx, to: str) -> None: ...


def both():
    return [mail]


def fails():
    raise RuntimeError("no such account")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "post.py").write_text(textwrap.dedent(MODULE))
    return tmp_path


def program(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "LOG": str(folder / "log")}
    return subprocess.Popen(
        [sys.executable, "-m", "counterfoil", *words], cwd=folder, env=environment, text=True, stderr=subprocess.PIPE
    )


@pytest.mark.rule("X3")
@pytest.mark.parametrize("target", ["post:mail", "post.py:both"])
def test_a_process_dispatches_until_it_is_idle(lone: FileShop, folder: Path, target: str) -> None:
    lone.order("o1")
    done = program(folder, "--ledger", lone.url, "dispatch", target, "--until-idle")
    assert "1 accepted" in done.communicate(timeout=PATIENCE_S)[1]
    assert done.returncode == 0
    assert (folder / "log").read_text() == "o1\n"


@pytest.mark.rule("X3", "X15")
def test_a_process_drains_when_it_is_told_to_end(lone: FileShop, folder: Path) -> None:
    running = program(folder, "--ledger", lone.url, "dispatch", "post:mail")
    lone.order("o1")
    lone.outbox.wait("o1", timeout_s=PATIENCE_S)
    running.send_signal(signal.SIGTERM)
    assert "1 accepted" in running.communicate(timeout=PATIENCE_S)[1]
    assert running.returncode == 0
    lone.order("o2")
    assert lone.receipt("o2").state == "pending"


def test_recipients_that_are_not_there_are_named(lone: FileShop, folder: Path) -> None:
    for target, says in (
        ("post:nobody", "no recipients"),
        ("nowhere:mail", "cannot be imported"),
        ("post", "module:attribute"),
        ("post:send", "'post:send' is an operation (name its recipient)"),
        ("post.py:fails", "RuntimeError: no such account"),
    ):
        done = program(folder, "--ledger", lone.url, "dispatch", target)
        assert says in done.communicate(timeout=PATIENCE_S)[1]
        assert done.returncode == 2


@pytest.mark.rule("N1")
def test_one_that_waits_for_a_person_is_counted_behind_any_number_that_do_not(
    lone: FileShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(ctx: object) -> None:
        raise ConnectionResetError

    for key in ("o1", "o2"):
        lone.box.does[key] = lost
        lone.order(key, recipient="door")
        lone.dispatch()
    newest = lone.outbox.list(state="uncertain", limit=1)[0]
    lone.outbox.decide(newest.key, did_not_happen=True, reason="looked", by="ann", expect_version=newest.version)
    listed = Outbox.list
    # A page of one stands for one of a thousand.
    monkeypatch.setattr(Outbox, "list", lambda self, *, state=None, limit=1: listed(self, state=state, limit=1))
    assert "1 for a person" in Terminal(lone.url)("outbox", code=1).stderr

"""`counterfoil work`: processes that resume what the dead left behind, and share it; `lift` ends a quarantine."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from counterfoil import Runtime
from counterfoil.protocol import codec, records, slots
from counterfoil.protocol.legality import RunCheck
from tests.cli import working_bodies
from tests.cli.terminal import Terminal
from tests.support import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.cli.working_bodies"


@pytest.fixture
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if getattr(request, "param", "sqlite") == "postgres":
        return f"{request.getfixturevalue('database')}?beat=0.2"
    return f"sqlite:///{tmp_path / 'ledger.db'}"


BOTH = pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture(autouse=True)
def logs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_bodies, "FOLDER", tmp_path)


def leave_behind(url: str, body: str, *names: str) -> None:
    """Let a life begin runs and be gone before their bodies have done anything."""
    with Runtime(url) as runtime:
        session = runtime._session
        for name in names:
            given = codec.StartedBody(body=f"{MODULE}:{body}", args=msgspec.Raw(json.dumps([name]).encode()))
            draft = records.Draft(slot=slots.STARTED, kind=records.RUN, phase="started", body=codec.body_of(given))
            session.ledger.append(session.entry(session.scope(name, session.state(name)), draft, session.epoch()))


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts workers; none outlives its test."""
    started: list[subprocess.Popen[str]] = []

    def start_one(bodies: str, *options: str, ledger: str = url) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "counterfoil", "--ledger", ledger, "--json", "work", f"{MODULE}:{bodies}"]
        environment = {**os.environ, "WORKING_FOLDER": str(tmp_path), "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [*words, "--poll", "0.05", *options],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


def events(process: subprocess.Popen[str], *, code: int) -> list[tuple[str, str]]:
    out, err = process.communicate(timeout=PATIENCE_S * 2)
    assert process.returncode == code, (process.returncode, out, err)
    return [(said["event"], said["run"]) for said in map(json.loads, out.splitlines())]


def until(holds: Callable[[], Any]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def begun(*names: str) -> Callable[[], bool]:
    return lambda: {line[1] for line in working_bodies.lines() if line[0] == "begin"} >= set(names)


def sound(url: str) -> bool:
    with Runtime(url) as runtime:
        ids = [view.run_id for view in runtime.runs()]
        found = [RunCheck(runtime.namespace, each, runtime.ledger.read(runtime.namespace, each)) for each in ids]
    return all(check.findings == [] for check in found)


@pytest.mark.parametrize(
    ("bodies", "body"), [("ALL", "order"), ("MAPPING", "order"), ("order", "order"), ("ASYNC", "order_async")]
)
def test_until_idle_a_worker_resumes_what_is_left_and_ends(url: str, start: Start, bodies: str, body: str) -> None:
    names = [f"r{number}" for number in range(5)]
    leave_behind(url, body, *names)
    told = events(start(bodies, "--until-idle", "--at-once", "2"), code=0)
    assert sorted(told) == sorted((event, name) for name in names for event in ("finished", "resumed"))
    with Runtime(url) as runtime:
        assert {view.state for view in runtime.runs()} == {"finished"}
    assert sound(url)


@pytest.mark.parametrize(("bodies", "body"), [("ALL", "waits"), ("ASYNC", "waits_async")])
def test_a_worker_that_is_told_to_end_lets_go_of_what_waits(url: str, start: Start, bodies: str, body: str) -> None:
    leave_behind(url, body, "r")
    first = start(bodies)
    until(begun("r"))
    second = start(bodies)
    first.send_signal(signal.SIGTERM)
    assert events(first, code=0) == [("resumed", "r"), ("released", "r")]
    until(lambda: len(working_bodies.lines()) == 2)
    with Runtime(url) as runtime:
        runtime.deliver("r", "go", "r", "now")
        until(lambda: runtime.runs(finished=True))
    second.send_signal(signal.SIGINT)
    assert events(second, code=0) == [("resumed", "r"), ("finished", "r")]
    assert sound(url)


def test_a_body_that_does_not_end_in_time_is_named(url: str, start: Start) -> None:
    leave_behind(url, "stuck", "r")
    worker = start("ALL", "--drain", "0.1")
    until(begun("r"))
    worker.send_signal(signal.SIGTERM)
    out, err = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 1
    assert "still running: r" in err
    assert "released" not in out


@BOTH
def test_a_body_that_kills_its_process_is_quarantined_and_the_others_are_done(
    url: str, start: Start, change: Any
) -> None:
    leave_behind(url, "killer", "killer")
    leave_behind(url, "order", "a", "b")
    ends: list[int] = []
    out = ""
    # As a supervisor would: start it again whenever it has died.
    while not ends or ends[-1] == -signal.SIGKILL:
        worker = start("ALL", "--until-idle", "--deaths", "3")
        out, _ = worker.communicate(timeout=PATIENCE_S)
        ends.append(worker.returncode)
        silent(url)
    assert ends == [-signal.SIGKILL, -signal.SIGKILL, 1]
    assert ("quarantined", 3) in [(said["event"], said["deaths"]) for said in map(json.loads, out.splitlines())]
    begins = Counter(line[1] for line in working_bodies.lines() if line[0] == "begin")
    assert begins["killer"] == 2
    with Runtime(url) as runtime:
        assert {view.run_id for view in runtime.runs(finished=True)} == {"a", "b"}
    assert sound(url)
    terminal = Terminal(url)
    assert terminal.json("show", "killer")["quarantined"] == 3
    shown = terminal("show", "killer").stdout
    assert "quarantined: 3 lives in a row" in shown
    assert "lift --by YOU --reason WHY killer" in shown
    assert terminal.json("lift", "killer", "--by", "ann", "--reason", "mended") == {"lifted": "killer"}
    terminal("lift", "killer", "--by", "ann", "--reason", "mended", code=2)
    assert terminal.json("show", "killer")["quarantined"] is None
    # The next one dies of it again.
    assert events_of_the_dead(start("ALL", "--until-idle", "--deaths", "3")) == -signal.SIGKILL


def silent(url: str) -> None:
    """Wait until the dead look dead: on PostgreSQL that takes three beats."""
    with Runtime(url) as runtime:
        ledger: Any = runtime.ledger
        until(lambda: not any(owner.alive for owner in ledger.owners()))


def events_of_the_dead(worker: subprocess.Popen[str]) -> int:
    worker.communicate(timeout=PATIENCE_S)
    return worker.returncode


def test_what_raises_is_told_by_its_type_alone_and_is_an_exit_code(url: str, start: Start) -> None:
    leave_behind(url, "raises", "r")
    worker = start("ALL", "--until-idle")
    out, err = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 1
    assert [said["error"] for said in map(json.loads, out.splitlines())] == [None, "ValueError"]
    assert "secret" not in out + err


@BOTH
def test_two_workers_are_killed_at_random_and_share_what_is_left(url: str, start: Start) -> None:
    """The recipient's log is the judge: no effect twice, and no body in two living processes at once."""
    names = [f"r{number}" for number in range(12)]
    leave_behind(url, "order", *names)
    dice = random.Random()
    workers = [start("ALL", "--at-once", "4", "--deaths", "100") for _ in range(2)]
    give_up = time.monotonic() + 2 * PATIENCE_S
    while True:
        assert time.monotonic() < give_up
        time.sleep(dice.uniform(0.2, 0.5))
        with Runtime(url) as runtime:
            if len(runtime.runs(finished=True)) == len(names):
                break
        if len(workers) < 6:
            victim = dice.randrange(2)
            workers[-1 - victim].kill()
            workers.append(start("ALL", "--at-once", "4", "--deaths", "100"))
    lines = working_bodies.lines()
    paid = Counter(line[1] for line in lines if line[0] == "paid")
    with Runtime(url) as runtime:
        # One that was killed between the intent and its send has not sent, and nobody knows.
        uncertain = {effect.run_id for effect in runtime.effects(state="uncertain")}
    assert set(paid.values()) == {1}
    assert set(names) - uncertain <= set(paid) <= set(names)
    # On a server a life that is held up for long enough is taken for gone, and may live.
    for name in names if url.startswith("sqlite") else ():
        of_name = [(line[0], line[2]) for line in lines if line[1] == name and line[0] in ("begin", "end")]
        # Whoever begins after another has either seen it end, or it was killed: then it never says that it ended.
        for number, (word, who) in enumerate(of_name):
            if word == "end":
                assert of_name[number - 1] == ("begin", who), of_name
    assert sound(url)


@pytest.mark.parametrize(
    ("bodies", "said"),
    [
        ("MIXED", "mixed"),
        ("WRONG", "no function"),
        ("NOTHING", "no list"),
        ("absent", "there are no bodies"),
        ("FOLDER", "no list"),
    ],
)
def test_what_names_no_bodies_is_refused(url: str, bodies: str, said: str) -> None:
    leave_behind(url, "order", "r")
    assert said in Terminal(url)("work", f"{MODULE}:{bodies}", "--until-idle", code=2).stderr


@pytest.mark.parametrize("target", ["nothing", "no.such.module:BODIES", ":BODIES", f"{MODULE}:"])
def test_what_names_no_module_is_refused(url: str, target: str) -> None:
    leave_behind(url, "order", "r")
    Terminal(url)("work", target, "--until-idle", code=2)


def test_a_module_may_be_a_file_and_its_error_is_told(url: str, tmp_path: Path) -> None:
    leave_behind(url, "order", "r")
    (tmp_path / "broken_bodies.py").write_text("raise RuntimeError('at import')\n")
    found = Terminal(url)("work", f"{tmp_path}/broken_bodies.py:BODIES", code=2)
    assert "broken_bodies.py:1: RuntimeError: at import" in found.stderr
    found = Terminal(url)("work", "no_such_module:BODIES", code=2)
    assert "cannot be imported: No module named 'no_such_module'" in found.stderr
    assert "there are no bodies at" in Terminal(url)("work", f"{MODULE}:NOBODY", code=2).stderr


def test_a_ledger_that_is_not_there_is_an_exit_code(tmp_path: Path) -> None:
    Terminal(f"sqlite:///{tmp_path}/absent.db")("work", f"{MODULE}:ALL", "--until-idle", code=3)


def test_progress_on_a_terminal_is_talk(url: str) -> None:
    leave_behind(url, "order", "r")
    leave_behind(url, "raises", "bad")
    found = Terminal(url)("work", f"{MODULE}:ALL", "--until-idle", "--at-once", "1", code=1)
    assert found.stdout == ""
    *progress, raised = found.stderr.splitlines()
    assert progress == ["resumed r", "finished r", "resumed bad"]
    assert re.fullmatch(r"raised bad: ValueError at \S*working_bodies\.py:\d+", raised)


# --- a changed body


def test_what_a_changed_body_no_longer_asks_for_is_shown_and_is_no_finding(url: str, change: Any) -> None:
    def begins(run: Any) -> None:
        run.step("price", lambda: 1)
        run.effect("charge", run=lambda: "ch_1", reconcile=lambda: None)
        run.sleep(0, name="nap")
        raise ValueError

    def ends(run: Any) -> str:
        return str(run.step("price", lambda: 2))

    def scenario(runtime: Runtime) -> None:
        with pytest.raises(ValueError):
            runtime.execute("r", begins)
        runtime.recover({f"{begins.__module__}:{begins.__qualname__}": ends})

    change(scenario)
    terminal = Terminal(url)
    heads = ["effect/charge", "park/sleep/nap"]
    assert terminal.json("show", "r")["unasked"] == heads
    assert "no longer asked for by the body that ended the run: sleep nap" in terminal("show", "r").stdout
    verified = terminal.json("verify")
    assert (verified["findings"], verified["remarks"]) == ([], [{"run": "r", "unasked": heads}])
    assert "run r: the body that ended it no longer asked for effect charge" in terminal("verify").stdout

"""Several processes on one ledger: one sends, whatever becomes of the others. The recipient's log judges."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ledgers.postgres_support import until
from tests.support import PATIENCE_S, Store

WORKER = Path(__file__).with_name("worker.py")
NOISE = ("ready", "sending", "waiting")
COLOURS = pytest.mark.parametrize("colour_name", ["blocking", "asyncio"])


class Worker:
    """One process that asks for the effect."""

    def __init__(self, arena: "Arena", run_id: str, *, lasts: str, ending: str, colour: str, wait: float) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(WORKER),
                arena.url,
                str(arena.folder),
                run_id,
                lasts,
                ending,
                colour,
                str(wait),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def expect(self, word: str) -> None:
        """It says so next."""
        line = self.hears()
        assert line == word, line

    def hears(self) -> str:
        """What it says next."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def says(self, word: str) -> None:
        """Wait until it has said so, whatever it says before."""
        while (line := self.hears()) != word:
            assert line in NOISE, line

    def go(self) -> None:
        """Let it ask now."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """What it was told in the end."""
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        lines = [line for line in out.split("\n") if line and line not in NOISE]
        return lines[-1] if lines else f"ended with {self.process.returncode}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


class Arena:
    """A ledger, a recipient's log, and the processes of one test."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.workers: list[Worker] = []

    def worker(
        self,
        run_id: str = "r",
        *,
        lasts: str = "-",
        ending: str = "ok",
        colour: str = "blocking",
        wait: float = 3600.0,
    ) -> Worker:
        made = Worker(self, run_id, lasts=lasts, ending=ending, colour=colour, wait=wait)
        self.workers.append(made)
        return made

    def end(self, lasts: str) -> None:
        """Let the requests end that last until then."""
        (self.folder / lasts).touch()

    def requests(self) -> list[str]:
        path = self.folder / "requests"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()
            for pipe in (worker.process.stdin, worker.process.stdout):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def arena(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Arena]:
    """An arena on SQLite, or on the ledger that a test is parametrized with."""
    kind = getattr(request, "param", "sqlite")
    server = request.getfixturevalue("shared_database") if kind == "postgres" else ""
    if kind == "nats":
        server = request.getfixturevalue("nats").url
    made = Arena(tmp_path, Store(kind, tmp_path, server).url)
    yield made
    made.close()


def accepted(answer: str, via: str) -> bool:
    return answer.startswith(f"Accepted {via} item of ")


@pytest.mark.rule("E8")
@pytest.mark.parametrize(
    ("arena", "colour_name"),
    [("sqlite", "blocking"), ("sqlite", "asyncio"), ("postgres", "asyncio"), ("nats", "blocking")],
    indirect=["arena"],
)
def test_ten_processes_at_once_send_once_and_are_told_the_same(arena, colour_name):
    workers = [arena.worker(lasts="all wait", colour=colour_name) for _ in range(10)]
    for worker in workers:
        worker.expect("ready")
    for worker in workers:
        worker.go()
    told = [worker.hears() for worker in workers]
    assert sorted(told) == ["sending", *["waiting"] * 9]
    arena.end("all wait")
    answers = [worker.answer() for worker in workers]
    assert len(set(answers)) == 1
    assert accepted(answers[0], "run")
    assert len(arena.requests()) == 1


@COLOURS
@pytest.mark.rule("E8", "E2")
def test_a_loser_asks_when_the_winner_is_killed_in_the_middle(arena, colour_name):
    winner = arena.worker(lasts="never", colour=colour_name)
    loser = arena.worker(colour=colour_name)
    loser.expect("ready")
    winner.expect("ready")
    winner.go()
    winner.expect("sending")
    loser.go()
    loser.says("waiting")
    winner.signal(signal.SIGKILL)
    # The request was lost with its process: nothing is found, and nothing is sent again.
    assert loser.answer() == "Uncertain - -"
    assert len(arena.requests()) == 1


@COLOURS
@pytest.mark.rule("E8", "E3")
def test_a_loser_asks_at_once_when_the_winner_has_released(arena, colour_name):
    winner = arena.worker(lasts="waited for", ending="raise", colour=colour_name)
    loser = arena.worker(colour=colour_name)
    loser.expect("ready")
    winner.expect("ready")
    winner.go()
    winner.expect("sending")
    loser.go()
    loser.says("waiting")
    arena.end("waited for")
    assert accepted(loser.answer(), "reconcile")
    assert winner.answer() == "unresolved run-failed"
    assert len(arena.requests()) == 1


@COLOURS
@pytest.mark.rule("E8", "E20")
def test_a_loser_that_has_waited_long_enough_says_in_flight(arena, colour_name):
    winner = arena.worker(lasts="the loser was told", colour=colour_name)
    loser = arena.worker(colour=colour_name, wait=0.2)
    loser.expect("ready")
    winner.expect("ready")
    winner.go()
    winner.expect("sending")
    loser.go()
    assert loser.answer() == "unresolved in-flight"
    arena.end("the loser was told")
    assert accepted(winner.answer(), "run")
    assert len(arena.requests()) == 1


@COLOURS
@pytest.mark.rule("E8", "E21")
def test_a_winner_that_is_stopped_and_continued_still_has_its_send_right(arena, colour_name):
    winner = arena.worker(lasts="continued", colour=colour_name)
    loser = arena.worker(colour=colour_name)
    loser.expect("ready")
    winner.expect("ready")
    winner.go()
    winner.expect("sending")
    winner.signal(signal.SIGSTOP)
    loser.go()
    # A stopped process is slow, not gone: its lock is held, whenever the loser looks.
    for _ in range(3):
        loser.says("waiting")
    arena.end("continued")
    winner.signal(signal.SIGCONT)
    assert accepted(winner.answer(), "run")
    assert accepted(loser.answer(), "run")
    assert len(arena.requests()) == 1


@pytest.mark.rule("E8", "E11")
def test_the_key_is_the_same_in_every_process(arena):
    first = arena.worker(ending="raise")
    first.expect("ready")
    first.go()
    assert first.answer() == "unresolved run-failed"
    second = arena.worker()
    second.expect("ready")
    second.go()
    (key,) = arena.requests()
    assert second.answer() == f"Accepted reconcile item of {key}"


@pytest.mark.rule("E8")
@pytest.mark.parametrize(
    ("arena", "colours"),
    [
        ("sqlite", ("blocking", "asyncio")),
        ("sqlite", ("asyncio", "asyncio")),
        ("postgres", ("blocking", "asyncio")),
        ("nats", ("blocking", "asyncio")),
    ],
    indirect=["arena"],
)
def test_two_processes_ask_for_ten_effects_at_the_same_moment(arena, colours):
    """Both ask for each effect within a few milliseconds; `run` lasts. Ten sends, and both are told the same.

    `make torture` does it two hundred times with a `run` of six seconds.
    """
    names = [f"r{number}" for number in range(10)]
    pair = [
        arena.worker(",".join(ordered), lasts="both wait", colour=colour)
        for colour, ordered in zip(colours, (names, names[::-1]), strict=True)
    ]
    for worker in pair:
        worker.expect("ready")
    for worker in pair:
        worker.go()
    until(lambda: len(arena.requests()) == 10)
    arena.end("both wait")
    one, two = (worker.answer().split("; ") for worker in pair)
    assert one == two[::-1]
    assert all(accepted(answer, "run") for answer in one)
    requests = arena.requests()
    assert len(requests) == len(set(requests)) == 10


def test_no_process_is_left_behind(arena):
    worker = arena.worker(lasts="never")
    worker.expect("ready")
    arena.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker.process.pid, 0)


def ran(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.rule("E3", "E10")
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_ctrl_c_inside_an_async_handler_leaves_the_intent_and_ends_the_process(tmp_path: Path, kind):
    program = f"""
import asyncio, sys
from counterfoil import AsyncRuntime, Runtime, UNASKABLE
url = "sqlite:///{tmp_path}/ledger.db"
async def pay():
    await asyncio.sleep(0)
    raise KeyboardInterrupt
def blocking():
    with Runtime(url) as runtime, runtime.run("r") as run:
        run.effect("pay", run=pay, reconcile=UNASKABLE)
async def looped():
    async with AsyncRuntime(url) as runtime, runtime.run("r") as run:
        await run.effect("pay", run=pay, reconcile=UNASKABLE)
blocking() if "{kind}" == "blocking" else asyncio.run(looped())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode != 0
    assert done.stderr.strip().endswith("KeyboardInterrupt")
    from counterfoil import Runtime

    with Runtime(f"sqlite:///{tmp_path}/ledger.db") as runtime:
        assert [view.phase for view in runtime.show("r")] == ["intent", "released"]


@pytest.mark.rule("E3", "E10")
def test_ctrl_c_while_an_async_handler_sends_stops_it_before_the_attempt_is_released(tmp_path: Path):
    program = f"""
import asyncio, os, signal
from counterfoil import Runtime, UNASKABLE
ended = []
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever started the tests may have it ignored
async def pay():
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0.2)
        ended.append(True)
with Runtime("sqlite:///{tmp_path}/ledger.db") as runtime, runtime.run("r") as run:
    try:
        run.effect("pay", run=pay, reconcile=UNASKABLE)
    except KeyboardInterrupt:
        print(ended, [view.phase for view in runtime.show("r")])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout == "[True] ['intent', 'released']\n", done.stderr

"""The demo: what is killed sends nothing twice, what remembers nothing does, and no process is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from counterfoil.cli.demo import lanes
from counterfoil.cli.demo.lanes import points

PATIENCE_S = 120.0
PROGRAM = [sys.executable, "-c", "import sys; from counterfoil.cli import main; sys.exit(main())"]


def left_behind(folder: Path) -> list[str]:
    """The processes that still work for a demo."""
    found = subprocess.run(["ps", "-A", "-ww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if str(folder) in line and "counterfoil.cli.demo." in line]


@pytest.mark.rule("E1", "E2", "E8")
def test_killed_again_and_again_it_sends_nothing_twice_and_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    words = ["demo", "--seed", "7", "--kills", "8", "--folder", str(folder), "--json"]
    done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ours"]["kills"] == found["naive"]["kills"] == 8
    assert found["ours"]["orders"] == found["naive"]["orders"] >= 6
    assert found["ours"]["repeats"] == 0
    assert found["naive"]["repeats"] > 0
    assert found["findings"] == found["unfinished"] == []
    assert "files in" in done.stderr
    assert left_behind(folder) == []

    look = [*PROGRAM, "--ledger", found["ledger"]]
    verify = subprocess.run([*look, "verify", "--recipient-log", str(folder / "payee.jsonl")], check=False)
    assert verify.returncode == 0
    again = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "is not empty" in again.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_all_its_processes(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "demo"
    words = ["demo", "--kills", "500", "--folder", str(folder)]
    with subprocess.Popen([*PROGRAM, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        give_up = time.monotonic() + PATIENCE_S
        while not (folder / "ours.log").exists() and time.monotonic() < give_up:
            time.sleep(0.05)
        assert left_behind(folder)
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in said
    last = said.decode().splitlines()[-1]
    assert re.fullmatch(rf"stopped after \d+ kills?; files kept in {re.escape(str(folder))}", last)
    assert left_behind(folder) == []


def test_interrupted_while_a_process_starts_it_ends_that_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def started(*args: Any, **options: Any) -> Any:
        process = start(*args, **options)
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", started)
    with pytest.raises(KeyboardInterrupt), lanes.payee(tmp_path):
        raise AssertionError("the interrupt was lost")
    lane = lanes.Lane("ours", tmp_path, port=1, planned=["never 0"])
    with pytest.raises(KeyboardInterrupt):
        lane.poll()
    lane.stop()
    monkeypatch.undo()
    assert left_behind(tmp_path) == []


def test_the_worker_starts_without_what_only_people_need() -> None:
    script = (
        "import sys, counterfoil.cli.demo.worker; print([m for m in ('click', 'rich', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]"


def test_a_seed_chooses_the_points() -> None:
    assert points(7, 25) == points(7, 25) != points(8, 25)
    assert len(points(7, 3)) == 3
    exact = [point for point in points(7, 25) if "effect/" in point]
    assert len(exact) == 6

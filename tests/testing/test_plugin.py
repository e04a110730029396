"""The pytest plugin in a pytest of its own: its fixtures, its options, and what a failure reads like."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.test_house import ROOT

pytestmark = pytest.mark.rule("N4")

TESTS = """
from counterfoil import Accepted, AsyncRuntime
from counterfoil.testing.recipients import Payee


def test_a_runtime(counterfoil_runtime, counterfoil_ledger):
    with counterfoil_runtime.run("r") as run:
        assert run.effect("mail", run=lambda: "m1", reconcile=lambda: None).proof == "m1"


def test_a_recipient(counterfoil_runtime, recipient):
    payee = recipient("payee")
    payee.lose_reply()
    with counterfoil_runtime.run("r") as run:
        try:
            run.effect("charge", run=payee.charge, reconcile=payee.find)
        except Exception:
            pass
        assert run.effect("charge", run=payee.charge, reconcile=payee.find) == Accepted("ch_1", "reconcile")


def test_all_recipients(recipient):
    assert recipient("mail", lag_s=5.0).lag_s == 5.0
    assert recipient("http").url.startswith("http://127.0.0.1:")
    assert isinstance(recipient(Payee, deduplicates=True), Payee)
    recipient("decisions"), recipient("blobs")


def test_a_right_body(crash_points, recipient):
    payee = recipient("payee")

    def body(run):
        run.effect("charge", run=payee.charge, reconcile=payee.find)

    report = crash_points(body, kinds=["crash"])
    assert report.trials["crash"] == 6


def test_a_wrong_body(crash_points, recipient):
    payee = recipient("payee")

    def body(run):
        run.effect("charge", run=payee.charge, reconcile=lambda: None)

    crash_points(body)


def test_the_asynchronous_colour(counterfoil_ledger, crash_points, recipient):
    payee = recipient()

    async def body(run):
        await run.effect("charge", run=payee.awaited.charge, reconcile=payee.awaited.find)

    crash_points(body, kinds=["reply"])
    assert AsyncRuntime(counterfoil_ledger)
"""


def run_pytest(folder: Path, *options: str, tests: str = TESTS) -> subprocess.CompletedProcess[str]:
    (folder / "test_shop.py").write_text(tests, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    # As in a project that has no other plugin.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "counterfoil.testing.plugin",
        "-p",
        "no:cacheprovider",
        "-q",
        *options,
    ]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("ledger", ["memory", "sqlite", "sqlite3"])
def test_its_fixtures_work_on_every_ledger_without_any_other_plugin(tmp_path: Path, ledger: str) -> None:
    done = run_pytest(tmp_path, "--counterfoil-ledger", ledger)
    assert "1 failed, 5 passed" in done.stdout, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("E") and "BrokenBody" in line]
    assert "your reconcile for 'charge' did not find \"ch_" in line
    assert "IS KILLED after a call of a handler" in done.stdout


def test_seeds_are_added_by_an_option(tmp_path: Path) -> None:
    tests = """
def test_it(crash_points):
    assert crash_points(lambda run: run.step("a", lambda: 1)).trials["seed"] == 7
"""
    done = run_pytest(tmp_path, "--counterfoil-seeds", "7", tests=tests)
    assert "1 passed" in done.stdout, done.stdout


def test_an_unknown_recipient_is_refused_by_name(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, tests='def test_it(recipient):\n    recipient("bank")\n')
    assert "there is no recipient 'bank'" in done.stdout


@pytest.mark.parametrize("ledger", ["mysql://x", "nonsense", "sqlite:///a.db?engine=x"])
def test_a_ledger_that_there_is_not_is_refused_once(tmp_path: Path, ledger: str) -> None:
    done = run_pytest(tmp_path, "--counterfoil-ledger", ledger)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = (done.stdout + done.stderr).strip().splitlines()
    assert line.startswith("ERROR: --counterfoil-ledger: ")


def test_a_ledger_may_be_a_url(tmp_path: Path) -> None:
    tests = """
def test_it(counterfoil_runtime):
    with counterfoil_runtime.run("r") as run:
        run.step("a", lambda: 1)
"""
    done = run_pytest(tmp_path, "--counterfoil-ledger", f"sqlite:///{tmp_path}/mine.db", tests=tests)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "mine.db").exists()


def test_its_long_names_stand_beside_fixtures_of_ones_own(tmp_path: Path) -> None:
    tests = """
import pytest


@pytest.fixture
def recipient():
    return "ada@example.org"


@pytest.fixture
def crash_points():
    return []


def test_it(recipient, crash_points, counterfoil_recipient, counterfoil_crash_points):
    payee = counterfoil_recipient("payee")

    def body(run):
        run.effect("charge", run=payee.charge, reconcile=payee.find)

    assert counterfoil_crash_points(body, kinds=["crash"]).ok
    assert payee.requests
"""
    done = run_pytest(tmp_path, tests=tests)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_one_test_gets_the_same_by_either_name(tmp_path: Path) -> None:
    tests = """
def test_it(recipient, counterfoil_recipient, crash_points, counterfoil_crash_points):
    assert recipient is counterfoil_recipient
    assert crash_points is counterfoil_crash_points
"""
    done = run_pytest(tmp_path, tests=tests)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_pytest_finds_it_by_itself_and_it_imports_nothing_but_pytest() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["entry-points"]["pytest11"] == {"counterfoil": "counterfoil.testing.plugin"}
    code = (
        "import sys, counterfoil; before = set(sys.modules); import counterfoil.testing.plugin; "
        "print(sorted(m for m in set(sys.modules) - before if m.startswith('counterfoil')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['counterfoil.testing', 'counterfoil.testing.plugin']"

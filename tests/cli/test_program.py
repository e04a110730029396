"""How the program is called, and the commands that it prints: they work where it was called so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from counterfoil import Runtime
from counterfoil.cli import text
from tests.cli.terminal import Terminal


def installed(folder: Path) -> Path:
    """Put a program into a folder, as an installation does."""
    folder.mkdir()
    program = folder / "counterfoil"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom counterfoil.cli import main\nsys.exit(main())\n")
    program.chmod(0o755)
    return program


def test_it_is_printed_as_it_was_called_unless_a_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = installed(tmp_path / "here"), installed(tmp_path / "other")
    monkeypatch.setattr(sys, "argv", [str(here)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert text.command("runs") == f"{here} runs"
    monkeypatch.setenv("PATH", str(other.parent))
    assert text.command("runs") == f"{here} runs"
    monkeypatch.setenv("PATH", str(here.parent))
    assert text.command("runs") == "counterfoil runs"
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "counterfoil" / "__main__.py")])
    assert text.command("runs") == f"{sys.executable} -m counterfoil runs"
    monkeypatch.setattr(sys, "argv", ["a-program-of-somebody-else"])
    assert text.command("runs") == "counterfoil runs"


def test_a_command_that_is_printed_works_where_the_program_is_not_on_the_path(tmp_path: Path) -> None:
    program = installed(tmp_path / "bin dir")
    env = {**os.environ, "PATH": "/usr/bin:/bin"}
    words = ["demo", "--kills", "0", "--folder", str(tmp_path / "demo")]
    done = subprocess.run([program, *words], capture_output=True, text=True, check=True, env=env)
    printed = [line for line in done.stdout.splitlines() if " --ledger " in line]
    assert len(printed) == 2
    for command in printed:
        subprocess.run(["bash", "-c", command], capture_output=True, check=True, env=env)


def test_a_demo_that_keeps_nothing_prints_no_commands(tmp_path: Path) -> None:
    words = ["demo", "--kills", "0", "--no-keep", "--folder", str(tmp_path / "demo")]
    done = subprocess.run(
        [sys.executable, "-m", "counterfoil", *words], capture_output=True, text=True, check=True, timeout=60
    )
    assert "nothing was sent twice" in done.stdout
    assert " --ledger " not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_package_is_a_program_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "counterfoil", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("counterfoil, version ")


def on_a_terminal(url: str, *words: str, columns: int) -> list[str]:
    import pty

    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "counterfoil", "--ledger", url, *words],
        stdout=terminal, stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "NO_COLOR": "1"},
    ):  # fmt: skip
        os.close(terminal)
        shown = b""
        try:
            while chunk := os.read(controller, 65_536):
                shown += chunk
        except OSError:
            pass
        os.close(controller)
    return re.sub(rb"\x1b\[[\d;]*m", b"", shown).decode().splitlines()


@pytest.fixture
def long_names(url: str) -> str:
    with Runtime(url) as runtime:
        for run_id in ("order-of-the-customer-4711", "short", "x" * 255):
            with runtime.run(run_id) as run:
                run.effect("receipt-by-electronic-mail", run=lambda: "m1", reconcile=lambda: None)
    return url


def test_names_stay_in_one_piece_on_a_narrow_terminal(long_names: str) -> None:
    for words in (["effects"], ["runs"], ["show", "order-of-the-customer-4711"]):
        lines = on_a_terminal(long_names, *words, columns=80)
        of_it = [line for line in lines if "order-of-the-customer-4711" in line or "receipt-by-electronic-mail" in line]
        assert of_it, lines
        assert all(" ago" in line or words[0] == "show" for line in of_it)
    short = next(line for line in on_a_terminal(long_names, "effects", columns=80) if line.startswith("short"))
    assert "receipt-by-electronic-mail" in short
    assert re.search(r"\d+ (s|min) ago", short)
    assert "(" not in short


def test_a_wide_terminal_shows_the_time_too(long_names: str) -> None:
    short = next(line for line in on_a_terminal(long_names, "effects", columns=250) if line.startswith("short"))
    assert re.search(r"\d\d:\d\d:\d\d \(\d+ (s|min) ago\)", short)


def test_one_long_name_does_not_pad_every_row(long_names: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "counterfoil", "--ledger", long_names, "runs"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    head, *rows = done.stdout.splitlines()
    assert max(len(row) for row in (head, *rows[:2])) < 110
    assert rows[2].startswith("x" * 255 + "  open")


SHELL = 'exec "$0" -m counterfoil "$@"'


def through_shell(redirected: str, *words: str) -> tuple[int, str]:
    """Call the program as a shell does that redirects its streams."""
    done = subprocess.run(
        ["sh", "-c", f"{SHELL} {redirected}", sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words", [["runs"], ["effects", "--json"], ["export"], ["show", "r"], ["--help"], ["--version"]]
)
@pytest.mark.parametrize(("redirected", "why"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left")])
def test_a_stdout_that_takes_nothing_is_said_in_one_line(
    tmp_path: Path, words: list[str], redirected: str, why: str
) -> None:
    if ">/dev/full" in redirected and not Path("/dev/full").exists():
        pytest.skip("/dev/full is Linux's")
    url = f"sqlite:///{tmp_path / 'effects.db'}"
    with Runtime(url) as runtime:
        runtime.run("r").step("s", lambda: 1)
    code, told = through_shell(redirected, "--ledger", url, *words)
    assert code == 2
    assert told.splitlines()[-1] == f"counterfoil: stdout cannot be used: {why}" + (
        " on device" if "left" in why else ""
    )
    assert "Traceback" not in told


def test_what_is_opened_later_never_takes_the_place_of_a_closed_stdout(tmp_path: Path) -> None:
    # Each descriptor below 3 that is free would be the next file's: the ledger's lock, or its database.
    url = f"sqlite:///{tmp_path / 'effects.db'}"
    code, told = through_shell("<&- >&- 2>&-", "--ledger", url, "migrate")
    assert (code, told) == (2, "")
    with Runtime(url) as runtime:
        runtime.run("r").step("s", lambda: 1)
        assert [record.name for record in runtime.show("r")] == ["s"]
    assert through_shell("<&- 2>&-", "--ledger", url, "runs") == (0, "")


@pytest.mark.parametrize("group", [[], ["outbox"], ["blobs"]])
def test_help_says_what_each_command_does_in_a_whole_sentence(group: list[str]) -> None:
    said = Terminal("")(*group, "--help", ledger=False).stdout
    commands = said.partition("Commands:")[2]
    assert len(commands.splitlines()) > 5
    assert "..." not in commands

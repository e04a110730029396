"""How the program is called, and the commands that it prints: they work where it was called so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from counterfoil.cli import text


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
    done = subprocess.run([program, *words], capture_output=True, text=True, check=True, env=env, timeout=60)
    printed = [line for line in done.stdout.splitlines() if " --ledger " in line]
    assert len(printed) == 2
    for command in printed:
        subprocess.run(["bash", "-c", command], capture_output=True, check=True, env=env)


def test_the_package_is_a_program_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "counterfoil", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("counterfoil, version ")

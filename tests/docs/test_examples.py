"""Every example runs, and prints what its docstring says."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, check

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(example: Path, tmp_path: Path) -> None:
    text = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or ""
    _, marker, expected = text.partition("It prints:\n\n")
    assert marker, f"{example.name} does not say what it prints"
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("    ") for line in expected.splitlines()]
    check("\n".join(lines), done.stdout, example.name)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4

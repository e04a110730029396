"""The second look of CI: what passes by itself is named and lets the run go on; everything else stays failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "again.py"

UNLUCKY = """
from pathlib import Path

def test_unlucky():
    met = Path("met")
    first = not met.exists()
    met.touch()
    assert not first
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    # Most of the time of such a pytest is for plugins that it does not need; the tool's own `-n` is of one.
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("tests", "code", "said"),
    [
        (UNLUCKY, 0, "FLAKY, passed by itself: test_it.py::test_unlucky"),
        (UNLUCKY + "def test_wrong(): assert False", 1, "FAILED AGAIN, or beside one that did: test_it.py::test_wrong"),
        ("".join(f"def test_{n}(): assert False\n" for n in range(5)), 1, "Not told again: 5 tests"),
        ("def test_right(): pass", 1, "Not told again: 0 tests"),
    ],
    ids=["unlucky", "wrong", "many", "none"],
)
def test_only_what_passes_by_itself_is_forgiven(tmp_path, tests, code, said):
    (tmp_path / "test_it.py").write_text(tests)
    run(tmp_path, "-m", "pytest", "-q", f"--rootdir={tmp_path}")
    again = run(tmp_path, str(TOOL), f"--rootdir={tmp_path}")
    assert (again.returncode, said in again.stdout) == (code, True), again.stdout + again.stderr

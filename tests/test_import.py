"""What `import counterfoil` brings along. How long it takes is measured by `python -m benchmarks`."""

import json
import subprocess
import sys

import pytest

# msgspec uses it where it is installed; nobody has to install it.
TOLERATED = {"typing_extensions"}
# Each costs milliseconds, and most programs that import this library never need it through us.
HEAVY = ["asyncio", "click", "concurrent.futures", "email", "http", "logging", "random", "rich", "sqlite3", "ssl"]

SCRIPT = """
import json, sys
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def brought_along(statement):
    # -S: what site-packages' own start-up files import is not our doing; the paths are given instead.
    paths = json.dumps(sys.path)
    script = f"import sys; sys.path[:] = {paths}\n" + SCRIPT.format(statement=statement)
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, check=True, text=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("statement", ["import counterfoil", "from counterfoil import AsyncRuntime, Runtime"])
def test_only_the_standard_library_msgspec_and_apsw_are_imported(statement):
    rooms = {name.partition(".")[0] for name in brought_along(statement)}
    assert rooms - sys.stdlib_module_names - TOLERATED <= {"counterfoil", "msgspec", "apsw"}


@pytest.mark.parametrize("heavy", HEAVY)
def test_nothing_heavy_is_imported_before_it_is_used(heavy):
    assert heavy not in brought_along("import counterfoil")


def test_asyncio_is_imported_with_the_first_use_of_the_asyncio_colour():
    assert "asyncio" in brought_along("from counterfoil import AsyncRuntime")


def test_the_blocking_colour_works_without_asyncio_and_without_the_other_engine():
    found = brought_along(
        "from counterfoil import Runtime, UNASKABLE\n"
        "with Runtime('memory:') as runtime, runtime.run('r') as run:\n"
        "    run.effect('e', run=lambda: 1, reconcile=UNASKABLE)"
    )
    assert not {"asyncio", "sqlite3", "apsw"} & found

"""Tells the few tests that failed beside the others once more, by themselves, and says which pass then.

A test whose verdict hangs on the pace of a busy machine is at fault and has to be mended, but the
change that met it is not. So CI runs what failed once more, in one process: a test that fails again
fails the run; one that passes is named as flaky in the last lines. A run in which more than a few
failed is not one of bad luck, and stays failed.
"""

import json
import subprocess
import sys
from pathlib import Path

FEW = 4
FAILED = Path(".pytest_cache") / "v" / "cache" / "lastfailed"


def main(options: list[str]) -> int:
    """Runs again what failed in the last run of the folder it is called in; `options` are pytest's."""
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    if not 0 < len(failed) <= FEW:
        print(f"\nNot told again: {len(failed)} tests are on record as failed, and 1 to {FEW} could be bad luck.")
        return 1
    command = [sys.executable, "-m", "pytest", "--last-failed", "--last-failed-no-failures=none", "-n", "0", *options]
    ended = subprocess.run(command, check=False).returncode
    for test in failed:
        print(f"{'FAILED AGAIN, or beside one that did' if ended else 'FLAKY, passed by itself'}: {test}")
    return ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

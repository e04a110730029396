"""A park that has passed asks nothing any more."""

import pytest

from counterfoil import Runtime
from counterfoil.effects import park


@pytest.mark.rule("P1")
def test_a_sleep_that_has_passed_meanwhile_ends_without_a_request():
    with Runtime("memory:") as runtime, runtime.run("r") as run:
        run.sleep(0.0, name="nap")
        with pytest.raises(StopIteration):
            park.sleep(run._load(), "nap", 1.0).send(None)

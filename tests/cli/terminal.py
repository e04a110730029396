"""A way to run a command in this process, and a run with something of everything in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from counterfoil import UNASKABLE, EffectUnresolved, Evidence, Rejected, Runtime
from counterfoil.cli.commands import program

SECRET = "hunter2"
SHOP = "order-1"


class Terminal:
    """Runs commands of one ledger."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *words: str, code: int = 0, ledger: bool = True) -> Result:
        named = ["--ledger", self.url] if ledger else []
        # `--` must stay behind the command's own options.
        result = CliRunner().invoke(program, [*named, *words], env={"COUNTERFOIL_LEDGER": None})
        assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr, result.exception)
        return result

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self("--json", *words, code=code).stdout)


def boom() -> None:
    raise OSError(SECRET)


def fill(runtime: Runtime, run_id: str = SHOP, *, finish: bool = False) -> None:
    """Make a run with every kind of effect."""

    def refuse() -> None:
        raise Rejected(Evidence("no-address", phase="not-dispatched"))

    with runtime.run(run_id) as run:
        run.step("price", lambda: {"secret": SECRET})
        run.effect("charge", run=lambda: f"ch_{SECRET}", reconcile=UNASKABLE, request={"secret": SECRET})
        for _ in range(2):
            try:
                run.effect("door", run=boom, reconcile=UNASKABLE)
            except EffectUnresolved:
                continue
        run.effect("refused", run=refuse, reconcile=UNASKABLE)
        run.sleep(0.001, name="night")
        run.deliver("paid", "1", {"secret": SECRET})
        run.wait_for("paid", "1")
        if finish:
            run.finish({"secret": SECRET})
            return
        with pytest.raises(EffectUnresolved):
            run.effect("open", run=boom, reconcile=UNASKABLE)

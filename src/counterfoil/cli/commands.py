"""The program: its commands, and how every error ends in one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

import click

import counterfoil
from counterfoil.cli import acting, checking, streams, viewing
from counterfoil.cli.auditing import audit_client
from counterfoil.cli.blobs import blobs
from counterfoil.cli.demo.command import demo
from counterfoil.cli.dispatch import dispatch
from counterfoil.cli.eventing import events
from counterfoil.cli.groups import Group
from counterfoil.cli.outboxing import outbox
from counterfoil.cli.output import say
from counterfoil.cli.simulating import simulate
from counterfoil.cli.working import lift, work
from counterfoil.errors import CounterfoilError, Denied, EffectError, LedgerError, RunPruned, UsageError

FOUND: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 3
DECIDED: Final = 4
INTERRUPTED: Final = 130
OURS: Final = 70

_DEBUG: Final = "COUNTERFOIL_DEBUG"
_HOW: Final = f"with what {_DEBUG}=1 shows"
_CODES: Final[tuple[tuple[type[CounterfoilError], int], ...]] = (
    (UsageError, USAGE),
    # The ledger is well; the run is over and gone.
    (RunPruned, USAGE),
    (LedgerError, UNAVAILABLE),
    (Denied, DECIDED),
    (EffectError, FOUND),
)


class Program(Group):
    """The group of all commands."""

    def run(self, args: Sequence[str] | None = None) -> int:
        """Run a command and return its exit code; nothing is raised."""
        streams.ready()
        try:
            found = self.main(args, prog_name="counterfoil", standalone_mode=False)
        except click.ClickException as error:
            error.show()
            return USAGE
        except click.Abort:
            return INTERRUPTED
        except OSError as error:
            # Of `--help`, which comes before any command.
            return _not_written(error)
        return found if isinstance(found, int) else 0

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; errors become one line on stderr and an exit code."""
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except CounterfoilError as error:
            # Whoever comes second must know what became of what they said.
            say(f"counterfoil: {error}{'; nothing was recorded' if isinstance(error, Denied) else ''}")
            ctx.exit(next((code for kind, code in _CODES if isinstance(error, kind)), FOUND))
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # noqa: BLE001 - people get a line, not a traceback
            if os.environ.get(_DEBUG):
                traceback.print_exc()
            if isinstance(error, OSError) and error.errno is not None:
                ctx.exit(_not_written(error))
            say(f"counterfoil: {type(error).__name__}: {error} (a defect of counterfoil: please report it, {_HOW})")
            ctx.exit(OURS)


def _not_written(error: OSError) -> int:
    """Say that a file, or stdout, cannot be used: no room, no such folder, no permission."""
    if error.filename is None:
        streams.drop()
    if isinstance(error, BrokenPipeError):
        # Whoever read has read enough.
        return 0
    say(f"counterfoil: {error.filename or 'stdout'} cannot be used: {error.strerror}")
    return USAGE


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 1 found something; 2 usage; 3 the ledger is unavailable; 4 somebody else decided; "
    "70 a defect of counterfoil: please report; 130 interrupted.",
)
@click.option(
    "--ledger", metavar="URL", envvar="COUNTERFOIL_LEDGER", help="The ledger, for example sqlite:///effects.db."
)
@click.option("--namespace", metavar="NAME", envvar="COUNTERFOIL_NAMESPACE", help="The scope of the run ids.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.version_option(counterfoil.__version__, prog_name="counterfoil")
def program(**_options: Any) -> None:
    """Look at a ledger of effects, and decide what only a person can.

    The ledger is named by --ledger, before or after the command, or by COUNTERFOIL_LEDGER. Looking calls
    nothing and records nothing. Data goes to stdout and talk to stderr; payloads, proofs and results are
    redacted unless --show-payloads is given.
    """


for _command in (
    demo,
    simulate,
    audit_client,
    viewing.runs,
    viewing.show,
    viewing.effects,
    viewing.uncertain,
    acting.decide,
    acting.settle,
    acting.deliver,
    checking.verify,
    checking.export,
    work,
    lift,
    outbox,
    dispatch,
    blobs,
    events,
    acting.prune,
    acting.accept_restore,
    acting.migrate,
    checking.doctor,
):
    program.add_command(_command)

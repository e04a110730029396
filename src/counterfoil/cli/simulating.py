"""`counterfoil simulate`: a user's own body at every crash point, and what breaks first."""

from __future__ import annotations

import json
from typing import Any

import click

from counterfoil.cli.output import document, line
from counterfoil.errors import UsageError


@click.command()
@click.argument("body", metavar="MODULE:BODY")
@click.option(
    "--seeds", type=click.IntRange(0), default=100, show_default=True, help="Random trials, after all others."
)
@click.option("--seed", type=click.IntRange(0), help="Only the random trial of this seed.")
@click.option(
    "--on", "ledger", metavar="LEDGER", default="memory", show_default=True, help="Or sqlite, sqlite3, a URL."
)
@click.option("--sent", metavar="FUNCTION", help="The module's function that counts what reached the recipients.")
@click.option("--deliver", nargs=3, multiple=True, metavar="EVENT ID JSON", help="Something that the body waits for.")
@click.option("--lag", "lag_s", type=float, metavar="SECONDS", help="How late the recipients may show something.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def simulate(*, body: str, as_json: bool, deliver: tuple[tuple[str, str, str], ...], **wanted: Any) -> None:
    """Try a body of yours: crashes, lost replies, a failing ledger, a second process.

    BODY is a function that takes a run, blocking or asynchronous; MODULE may be a file. It is called many
    times, in this process, with runs of their own on a ledger of its own; its handlers are called for real.
    The exit code is 1 if something breaks.
    """
    # The testing room is needed by this command only.
    from counterfoil.testing import command

    report = command.simulate(
        command.Wanted(target=body, deliver=[(event, id_, _payload(text)) for event, id_, text in deliver], **wanted)
    )
    if as_json or click.get_current_context().find_root().params.get("as_json"):
        document(report.shape())
    else:
        line(str(report))
    click.get_current_context().exit(0 if report.ok else 1)


def _payload(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise UsageError(f"the payload {text!r} is no JSON", hint="text is written '\"so\"'") from None

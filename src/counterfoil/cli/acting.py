"""Commands that record something: `decide`, `settle`, `deliver`, `prune`, `accept-restore`, `migrate`."""

from __future__ import annotations

import json
from typing import Any

import click

from counterfoil.cli import shapes
from counterfoil.cli.output import document, line, say
from counterfoil.cli.places import Place, placed, schema_sql, showing
from counterfoil.cli.text import command, escaped, given
from counterfoil.errors import UsageError
from counterfoil.ports.ledger import Restorable
from counterfoil.protocol.records import EVENT

_PROOF_HELP = (
    "PROOF is read as JSON if it parses as JSON, else as a string: 17 is a number, ch_17 a string, '\"17\"' a string."
)
_KEY = "`show` prints it, `effects --json` has it in the field `key`"
_DAY_S = 86_400.0


@click.command(epilog=_PROOF_HELP)
@click.argument("run_id", metavar="RUN")
@click.argument("effect", metavar="EFFECT")
@click.option("--happened", metavar="PROOF", help="It happened, and this is what the recipient calls it.")
@click.option("--did-not-happen", is_flag=True, help="It did not happen.")
@click.option("--reason", required=True, help="Why you are sure.")
@click.option("--by", required=True, help="Who you are.")
@click.option("--expect-version", type=int, required=True, metavar="N", help="The version that you saw (`show`).")
@click.option("--new-name", metavar="NAME", help="It may be sent again under this name (with --did-not-happen).")
@showing
@placed
def decide(place: Place, *, run_id: str, effect: str, happened: str | None, **said: Any) -> None:
    """Record what you found out about an uncertain effect.

    The outcome does not change; a body that waits for the decision goes on with it. Refused (exit code 4) if
    somebody decided before you, or the effect changed since you looked.
    """
    if (happened is None) is not said["did_not_happen"]:
        raise UsageError("say either --happened PROOF or --did-not-happen")
    proof = None if happened is None else given(happened)
    if happened is not None and proof is None:
        raise UsageError("null names nothing", hint="--happened takes what the recipient calls it")
    if happened is not None and said["new_name"] is not None:
        raise UsageError("what happened is not sent again", hint="--new-name goes with --did-not-happen")
    with place.open() as runtime:
        found = runtime.decide(run_id, effect, happened=proof, **said)
    if place.as_json:
        document({"decision": shapes.decision(found, shown=place.shown)})
    else:
        line(f"recorded: effect {escaped(effect)} of run {escaped(run_id)} {_verdict(found.happened)}")


def _verdict(happened: bool) -> str:  # noqa: FBT001 - a verdict is one
    return "happened" if happened else "did not happen"


@click.command(epilog=_PROOF_HELP)
@click.argument("run_id", metavar="RUN")
@click.argument("effect", metavar="EFFECT")
@click.argument("proof", metavar="PROOF")
@click.option("--key", required=True, help=f"The key that the attempt gave to the recipient: {_KEY}.")
@click.option("--source", required=True, help="Where the evidence came from: a webhook, a statement.")
@placed
def settle(place: Place, *, run_id: str, effect: str, proof: str, **said: str) -> None:
    """Record evidence that an effect was accepted, which came by another way."""
    with place.open() as runtime:
        try:
            ended = runtime.settle(run_id, effect, given(proof), **said)
        except UsageError as error:
            if error.code == "no-such-attempt":
                error.hint = _KEY
            raise
        had_outcome = ended or any(
            view.name == effect and view.outcome is not None for view in runtime.effects(run_id=run_id)
        )
    if place.as_json:
        document({"recorded_as": "outcome" if ended else "late-evidence"})
    elif ended:
        line(f"recorded: effect {escaped(effect)} of run {escaped(run_id)} was accepted")
    elif had_outcome:
        line("recorded as late evidence: it had an outcome")
    else:
        line("recorded, and kept: the next call of the effect verifies the proof, and takes it up before it asks")


@click.command()
@click.argument("run_id", metavar="RUN")
@click.argument("event", metavar="EVENT")
@click.argument("id", metavar="ID")
@click.argument("payload", metavar="[PAYLOAD-JSON]", default="null")
@placed
def deliver(place: Place, *, run_id: str, event: str, id: str, payload: str) -> None:
    """Deliver an event to a run, once. The payload is JSON; without one it is null.

    Delivering the same payload again is no error; another payload is (exit code 4).
    """
    try:
        found = json.loads(payload)
    except ValueError as error:
        raise UsageError(f"the payload is not JSON: {error}", hint="a string needs its quotes: '\"text\"'") from None
    with place.open() as runtime:
        new = runtime.deliver(run_id, event, id, found)
        begun = any(record.kind != EVENT for record in runtime.show(run_id))
    if place.as_json:
        document({"recorded": new, "begun": begun})
    else:
        line("delivered" if new else "the same payload had been delivered before")
    if not begun:
        # A run may well begin later; a name that was mistyped does not.
        say(f"delivered; run '{escaped(run_id)}' has not begun yet")


@click.command()
@click.option("--older-than", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="DAYS")
@click.option(
    "--deliveries-older-than",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Also deliveries for runs that nobody has begun, from this age.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be pruned.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N runs.")
@click.option("--reason", default="", help="Why; needed unless this is a dry run. Kept with each tombstone.")
@click.option("--by", default="", help="Who you are; needed unless this is a dry run.")
@placed
def prune(place: Place, **given: Any) -> None:
    """Prune runs that finished at least so many days ago.

    Identities, fingerprints, outcomes and the run's result stay; step results, payloads and timelines go. A run
    with an unresolved or uncertain effect is kept whole.
    """
    dry_run: bool = given["dry_run"]
    if not dry_run and not (given["reason"] and given["by"]):
        raise click.UsageError("say why (--reason) and who you are (--by), or look first with --dry-run")
    deliveries = given["deliveries_older_than"]
    with place.open() as runtime:
        report = runtime.prune(
            older_than_s=given["older_than"] * _DAY_S,
            deliveries_older_than_s=None if deliveries is None else deliveries * _DAY_S,
            limit=given["limit"],
            dry_run=dry_run,
            reason=given["reason"],
            by=given["by"],
        )
    if place.as_json:
        document({"pruned": list(report.pruned), "kept": report.kept, "dry_run": report.dry_run})
        return
    for run_id in report.pruned:
        line(escaped(run_id))
    for run_id, why in report.kept.items():
        say(f"kept {escaped(run_id)}: {why}")
    say(f"{'would prune' if dry_run else 'pruned'} {len(report.pruned)}, kept {len(report.kept)}")


@click.command("accept-restore")
@click.option("--by", required=True, help="Who you are.")
@click.option("--reason", required=True, help="What you looked at, and why the ledger may go on.")
@click.option("--unnoticed", is_flag=True, help="Also if the ledger did not notice it by itself.")
@placed
def accept_restore(place: Place, *, by: str, reason: str, unnoticed: bool) -> None:
    """Accept a ledger that went back in time (a restored backup), so that it takes records again.

    From then on an effect without a record, in a run begun before, asks the recipient first and is never sent.
    """
    if not by.strip() or not reason.strip():
        raise UsageError("say who you are (--by) and why it may go on (--reason)")
    with place.open() as runtime:
        ledger = runtime.ledger
        if not isinstance(ledger, Restorable):
            raise UsageError("this ledger does not notice that it went back in time")
        why = ledger.restored()
        if why is None and not unnoticed:
            again = command(*place.options(), "accept-restore", "--unnoticed", "--by", by, "--reason", reason)
            raise UsageError("this ledger did not notice that it went back", hint=f"if you know it did: {again}")
        generation = ledger.accept_restore(by=by, reason=reason)
    if place.as_json:
        document({"generation": generation, "why": why})
    else:
        line(f"accepted as generation {generation}: the ledger takes records again")
        say("in runs begun before, an effect without a record asks its recipient first, and is never sent")


@click.command()
@click.option("--sql", is_flag=True, help="Print the SQL instead of running it.")
@placed
def migrate(place: Place, *, sql: bool) -> None:
    """Bring the schema up to date; this makes the ledger where there is none."""
    if sql:
        click.echo(schema_sql(place.target), nl=False)
        return
    with place.open(create=True) as runtime:
        namespace = runtime.namespace
    if place.as_json:
        document({"namespace": namespace})
    else:
        line(f"the schema is up to date; namespace {escaped(namespace)}")


__all__ = ["accept_restore", "decide", "deliver", "migrate", "prune", "settle"]

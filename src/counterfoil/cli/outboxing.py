"""`counterfoil outbox`: what waits, what stands still and why, and the acts of people on it."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from counterfoil.cli import shapes
from counterfoil.cli.groups import Group
from counterfoil.cli.output import Cell, Column, document, line, say, table
from counterfoil.cli.places import Place, placed, schema_sql, showing
from counterfoil.cli.text import ago, command, escaped, given, operands, since, value
from counterfoil.errors import UsageError
from counterfoil.outbox.receipts import STATES, Receipt
from counterfoil.outcomes import Accepted
from counterfoil.runtime.outbox import Outbox

_DAY_S = 86_400.0
_PERSON = ("needs-operator", "quarantined", "uncertain")


@contextmanager
def opened(place: Place, *, create: bool = False) -> Generator[Outbox]:
    """Open the outbox of a ledger; looking at it makes no tables."""
    with place.open(create=create) as runtime:
        yield Outbox(runtime, create=create)


@click.group(cls=Group, invoke_without_command=True)
@placed
@click.pass_context
def outbox(context: click.Context, place: Place) -> None:
    """Say how much waits in the outbox, for whom, since when, and what stands still.

    The exit code is 1 when something waits for a person, so that it is fit for alerts.
    """
    if context.invoked_subcommand is not None:
        return
    with opened(place) as found:
        depth, lanes, seen = found.depth(), found.lanes(), found.snapshot()
        uncertain = [one for one in found.list(state="uncertain") if one.decision is None]
    # Of many that have been decided about only the newest are listed; what the snapshot counts is complete.
    waits = max(sum(count for _, state, count, _ in depth if state in _PERSON) + len(uncertain), seen.uncertain)
    if place.as_json:
        document(
            {
                "depth": [
                    {"recipient": name, "state": state, "count": count, "since": at} for name, state, count, at in depth
                ],
                "lanes": [
                    {"lane": lane, "waiting": count, "stuck": why, "since": at, "head": head}
                    for lane, count, why, at, head in lanes
                ],
                "undecided": len(uncertain),
                "paused": list(seen.paused),
            }
        )
    else:
        _depth(depth)
        _lanes(lanes)
        _paused(seen.paused)
        say(f"{waits} for a person" if waits else "nothing waits for a person")
        if waits:
            say(f"  {command(*place.options(), 'outbox', 'list')}")
    context.exit(1 if waits else 0)


def _depth(depth: list[tuple[str, str, int, float | None]]) -> None:
    if not depth:
        line("the outbox is empty")
        return
    now = time.time()
    columns = [Column("recipient"), Column("state"), Column("count", right=True), Column("oldest")]
    rows = [[escaped(name), state, str(count), _since(at, now)] for name, state, count, at in depth]
    table(columns, rows)


def _lanes(lanes: list[tuple[str, int, str | None, float | None, str | None]]) -> None:
    stuck = [(lane, count, why, at) for lane, count, why, at, _ in lanes if why is not None]
    if not stuck:
        return
    line()
    now = time.time()
    columns = [Column("lane"), Column("waiting", right=True), Column("stands still"), Column("since")]
    table(columns, [[escaped(lane), str(count), escaped(why), _since(at, now)] for lane, count, why, at in stuck])


def _paused(scopes: Sequence[str]) -> None:
    if scopes:
        what = ["everything" if scope == "*" else escaped(scope.replace(":", " ", 1)) for scope in scopes]
        line(f"paused: {', '.join(what)}", style="bold yellow")


def _since(at: float | None, now: float) -> str | Cell:
    return "" if at is None else Cell(since(at, now), ago(at, now))


@outbox.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only intents of this state; else all that wait.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, metavar="N")
@showing
@placed
def list_(place: Place, *, state: str | None, limit: int) -> None:
    """List intents: those that wait, or those of one state."""
    with opened(place) as found:
        receipts = found.list(state=state, limit=limit)
        if state is None:
            receipts += [one for one in found.list(state="uncertain", limit=limit) if one.decision is None]
    if place.as_json:
        document({"intents": [shapes.receipt(one, shown=place.shown) for one in receipts]})
        return
    now = time.time()
    columns = [Column("key"), Column("state"), Column("try", right=True), Column("since"), Column("why", fold=10)]
    rows: list[list[str | Cell]] = [
        [escaped(one.key), one.state, str(one.attempts), _since(one.since, now), escaped(one.reason or "")]
        for one in receipts
    ]
    if rows:
        table(columns, rows)
    else:
        say("none")


@outbox.command()
@click.argument("key", metavar="KEY")
@showing
@placed
def show(place: Place, *, key: str) -> None:
    """Show one intent: what became of it, on what that rests, and what can be done."""
    with opened(place) as found:
        receipt = found.receipt(key)
        story = None if receipt is None else found.opened.view.story(receipt.effect_id)
    if receipt is None or story is None:
        raise UsageError(f"nothing is staged under {key!r}", hint="`outbox list` lists what waits")
    if place.as_json:
        document(shapes.story(receipt, story, shown=place.shown))
        return
    now = time.time()
    line(f"intent {escaped(key)}: {receipt.state}{_why(receipt)}", style="bold")
    line(f"  {escaped(story.recipient)}.{escaped(story.operation)}, staged {since(story.staged_at, now)}")
    line(f"  key at the recipient {receipt.effect_id}, version {receipt.version}")
    if story.lane is not None:
        line(f"  lane {escaped(story.lane)}, place {story.place}")
    if receipt.due is not None:
        line(f"  due {since(receipt.due, now)}")
    if isinstance(receipt.outcome, Accepted):
        line(f"  accepted via {receipt.outcome.via}: {value(receipt.outcome.proof, shown=place.shown)}")
    for row in story.attempts:
        right = "" if row.right is None else f", {row.right}"
        line(
            f"  {since(row.at, now)}  {row.kind}{right}, {row.phase or 'in hand'} by {escaped(row.owner or 'a person')}"
        )
    for late in receipt.late_evidence:
        line(f"  late evidence: {late.claims}, {since(late.at, now)}")
    for name, by, why, at, _ in story.acts:
        line(f"  {name} by {escaped(by)}, {since(at, now)}: {escaped(why)}")
    _advise(place, receipt)


def _why(receipt: Receipt) -> str:
    return f" ({escaped(receipt.reason)})" if receipt.reason else ""


def _advise(place: Place, receipt: Receipt) -> None:
    said = ["--by", "YOU", "--reason", "WHY", "--expect-version", str(receipt.version), *operands(receipt.key)]
    if receipt.state in _PERSON and receipt.decision is None:
        say("once you know what became of it:")
        for found in (("--happened", "PROOF"), ("--did-not-happen",)):
            say(f"  {command(*place.options(), 'outbox', 'decide', *found, *said)}")
    if (
        receipt.state in ("failed", "rejected", "quarantined") and receipt.outcome is None
    ) or receipt.state == "failed":
        say("to have it sent again:")
        say(f"  {command(*place.options(), 'outbox', 'redrive', *said)}")


def _acting(function: Any) -> Any:
    """Give a command what every act on one intent has."""
    for option in (
        click.option(
            "--expect-version", type=int, required=True, metavar="N", help="The version that you saw (`show`)."
        ),
        click.option("--by", required=True, help="Who you are."),
        click.option("--reason", required=True, help="Why."),
        click.argument("key", metavar="KEY"),
    ):
        function = option(function)
    return function


@outbox.command()
@_acting
@placed
def redrive(place: Place, *, key: str, **said: Any) -> None:
    """Have an intent sent again that provably was not sent, or failed. Refused for what may have been sent."""
    with opened(place) as found:
        found.redrive(key, **said)
    _recorded(place, key, "will be sent again")


@outbox.command()
@_acting
@placed
def reconcile(place: Place, *, key: str, **said: Any) -> None:
    """Have the recipient asked again about an intent that waits for a person."""
    with opened(place) as found:
        found.reconcile(key, **said)
    _recorded(place, key, "will be asked about again")


@outbox.command()
@click.option("--happened", metavar="PROOF", help="It happened, and this is what the recipient calls it.")
@click.option("--did-not-happen", is_flag=True, help="It did not happen.")
@click.option("--new-key", metavar="KEY", help="It may be staged again under this key (with --did-not-happen).")
@_acting
@placed
def decide(place: Place, *, key: str, happened: str | None, **said: Any) -> None:
    """Record what you found out about an intent that may have been sent; its lane goes on.

    The outcome does not change. One that provably was never sent is given up with --did-not-happen.
    """
    if (happened is None) is not said["did_not_happen"]:
        raise UsageError("say either --happened PROOF or --did-not-happen")
    with opened(place) as found:
        found.decide(key, happened=None if happened is None else given(happened), **said)
    _recorded(place, key, "is decided")


def _recorded(place: Place, key: str, what: str) -> None:
    if place.as_json:
        document({"key": key, "recorded": True})
    else:
        line(f"recorded: intent {escaped(key)} {what}")


def _scoped(function: Any) -> Any:
    """Give a command what every act on the outbox has."""
    for option in (
        click.option("--by", required=True, help="Who you are."),
        click.option("--reason", required=True, help="Why."),
        click.argument("recipient", metavar="[RECIPIENT]", required=False),
    ):
        function = option(function)
    return function


@outbox.command()
@_scoped
@placed
def pause(place: Place, *, recipient: str | None, **said: Any) -> None:
    """Let nothing more be sent, to one recipient or at all."""
    with opened(place) as found:
        found.pause(recipient, **said)
        waiting = _waiting(found, recipient)
    _told(place, "paused", recipient, waiting=waiting)


@outbox.command()
@_scoped
@placed
def resume(place: Place, *, recipient: str | None, **said: Any) -> None:
    """Take back `pause`; let a restored outbox go on."""
    with opened(place) as found:
        found.resume(recipient, **said)
    _told(place, "resumed", recipient)


@outbox.command()
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), default=60.0, show_default=True, metavar="SECONDS")
@_scoped
@placed
@click.pass_context
def drain(context: click.Context, /, place: Place, *, recipient: str | None, timeout_s: float, **said: Any) -> None:
    """Pause, and wait until no dispatcher has anything in hand; exit code 1 if that takes too long."""
    with opened(place) as found:
        drained = found.drain(recipient, timeout_s=timeout_s, **said)
        waiting = _waiting(found, recipient)
    _told(place, "drained" if drained else "paused; something is still in hand", recipient, waiting=waiting)
    context.exit(0 if drained else 1)


def _waiting(found: Outbox, recipient: str | None) -> int:
    """Count what has not ended, of one recipient or at all."""
    return sum(count for name, _, count, _ in found.depth() if recipient in (None, name))


def _told(place: Place, what: str, recipient: str | None, *, waiting: int | None = None) -> None:
    if place.as_json:
        said = {"recipient": recipient, "state": what}
        document(said if waiting is None else {**said, "waiting": waiting})
        return
    line(f"{'the outbox' if recipient is None else f'recipient {escaped(recipient)}'} is {what}")
    if recipient is not None and waiting == 0:
        # Nobody keeps a list of recipients: a name may be paused before anything is staged for it, or mistyped.
        line("nothing waits for a recipient of this name; it holds for what is staged for one")


@outbox.command()
@click.option("--older-than", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="DAYS")
@click.option(
    "--limit", type=click.IntRange(1), default=1000, show_default=True, metavar="N", help="At most N intents."
)
@click.option("--by", required=True, help="Who you are.")
@click.option("--reason", required=True, help="Why.")
@placed
def prune(place: Place, *, older_than: float, **said: Any) -> None:
    """Let go of payloads and attempts of intents that were accepted, rejected or failed so many days ago.

    Identities, fingerprints and outcomes stay.
    """
    with opened(place) as found:
        count = found.prune(older_than_s=older_than * _DAY_S, **said)
    if place.as_json:
        document({"pruned": count})
    else:
        line(f"pruned {count}")


@outbox.command()
@click.option("--sql", is_flag=True, help="Print the SQL instead of running it.")
@placed
def migrate(place: Place, *, sql: bool) -> None:
    """Make the outbox's tables, or bring them up to date."""
    if sql:
        click.echo(schema_sql(place.target, outbox=True), nl=False)
        return
    with opened(place, create=True) as found:
        found.migrate()
    if place.as_json:
        document({"migrated": True})
    else:
        line("the outbox's tables are up to date")

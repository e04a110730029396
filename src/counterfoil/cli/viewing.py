"""Commands that look: `runs`, `effects`, `uncertain`, `show`. They call nothing and record nothing."""

from __future__ import annotations

import time

import click

from counterfoil.cli import shapes, timeline
from counterfoil.cli.output import Cell, Column, document, line, say, table
from counterfoil.cli.places import Place, placed, showing
from counterfoil.cli.text import ago, command, escaped, operands, since, value
from counterfoil.errors import UsageError
from counterfoil.outcomes import Accepted
from counterfoil.ports.ledger import Cautious
from counterfoil.runtime.views import STATES, EffectView


@click.command()
@click.option("--state", type=click.Choice(["open", "finished", "pruned"]), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the N newest.")
@placed
def runs(place: Place, *, state: str | None, limit: int | None) -> None:
    """List runs, oldest first."""
    with place.open() as runtime:
        finished = None if state is None else state != "open"
        found = [view for view in runtime.runs(finished=finished) if state in (None, view.state)]
    found = found if limit is None else found[-limit:]
    if place.as_json:
        document({"runs": [shapes.run(view) for view in found]})
        return
    now = time.time()
    columns = [Column("run"), Column("state"), Column("began"), Column("finished")]
    rows: list[list[str | Cell]] = [
        [
            escaped(view.run_id),
            view.state,
            _since(view.began, now),
            "" if view.finished is None else _since(view.finished, now),
        ]
        for view in found
    ]
    table(columns, rows)
    say(f"{len(found)} run{'' if len(found) == 1 else 's'}")


@click.command()
@click.option("--state", type=click.Choice(STATES), help="Only effects in this state.")
@click.option("--run", "run_id", metavar="RUN", help="Only effects of this run.")
@showing
@placed
def effects(place: Place, *, state: str | None, run_id: str | None) -> None:
    """List effects, those of the oldest run first."""
    with place.open() as runtime:
        found = runtime.effects(state=state, run_id=run_id)
    if place.as_json:
        document({"effects": [shapes.effect(view, shown=place.shown) for view in found]})
        return
    _listed(place, found)
    say(f"{len(found)} effect{'' if len(found) == 1 else 's'}")


@click.command()
@click.option("--all", "decided", is_flag=True, help="Also those that a person has decided about.")
@showing
@placed
def uncertain(place: Place, *, decided: bool) -> None:
    """List effects that nobody but a person can settle.

    The exit code is 1 when there are any that nobody has decided about, so that it is fit for alerts.
    """
    with place.open() as runtime:
        found = runtime.effects(state="uncertain")
    open_ones = [view for view in found if view.decision is None]
    listed = found if decided else open_ones
    if place.as_json:
        document({"uncertain": [shapes.effect(view, shown=place.shown) for view in listed]})
    elif listed:
        _listed(place, listed)
    if open_ones and not place.as_json:
        first = open_ones[0]
        say(f"{len(open_ones)} to decide. What is known about the first one:")
        say(f"  {command(*place.options(), 'show', *operands(first.run_id))}")
    elif not place.as_json:
        say("nothing to decide")
    click.get_current_context().exit(1 if open_ones else 0)


def _listed(place: Place, found: list[EffectView]) -> None:
    now = time.time()
    columns = [
        Column("run"),
        Column("effect"),
        Column("state"),
        Column("try", right=True),
        Column("since"),
        Column("rests on", fold=10),
        Column("version", right=True),
    ]
    rows: list[list[str | Cell]] = [
        [
            escaped(view.run_id),
            escaped(view.name),
            view.state,
            str(view.attempt),
            _since(view.since, now),
            _rests_on(view, shown=place.shown),
            str(view.version),
        ]
        for view in found
    ]
    table(columns, rows)


def _since(at: float, now: float) -> Cell:
    return Cell(since(at, now), ago(at, now))


def _rests_on(view: EffectView, *, shown: bool) -> str:
    if isinstance(view.outcome, Accepted):
        said = f"{view.outcome.via}: {value(view.outcome.proof, shown=shown)}"
    else:
        said = "" if view.outcome is None else escaped(view.outcome.evidence.kind)
    if view.decision is not None:
        said += f"; decided by {escaped(view.decision.by)}"
    return said + ("; late evidence" if view.late_evidence else "")


@click.command()
@click.argument("run_id", metavar="RUN")
@showing
@placed
def show(place: Place, *, run_id: str) -> None:
    """Show a run: its timeline, and each effect with what it rests on.

    For an uncertain effect it says what is known, since when, and how to decide about it.
    """
    with place.open() as runtime:
        records = runtime.show(run_id)
        if not records:
            raise UsageError(f"there is no run {run_id!r} in namespace {runtime.namespace!r}", hint="`runs` lists them")
        found = runtime.effects(run_id=run_id)
        lives = timeline.lives(runtime.ledger)
        namespace = runtime.namespace
        caution = runtime.ledger.caution if isinstance(runtime.ledger, Cautious) else None
    phases = {record.phase for record in records if record.kind == "durability/run"}
    carried = timeline.carried(records)
    state = "pruned" if "tombstone" in phases else "finished" if "finished" in phases else "open"
    if place.as_json:
        document(
            {
                "run": run_id,
                "namespace": namespace,
                "state": state,
                "quarantined": carried.deaths,
                "unasked": list(carried.unasked),
                "caution": caution,
                "records": [shapes.record(record, shown=place.shown) for record in records],
                "effects": [shapes.effect(view, shown=place.shown) for view in found],
            }
        )
        return
    line(f"run {escaped(run_id)}: {state}, began {since(records[0].at, time.time())}", style="bold")
    if caution is not None:
        line(f"  its records: {caution}", style="yellow")
    line()
    timeline.write(records)
    if found:
        line()
    timeline.write_carried(place, run_id, carried)
    for view in found:
        timeline.write_effect(place, view, last=timeline.last_attempt(records, view), lives=lives)


__all__ = ["effects", "runs", "show", "uncertain"]

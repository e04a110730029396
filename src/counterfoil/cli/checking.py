"""Commands that check: `verify`, `export`, `doctor`."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import click

import counterfoil
from counterfoil.cli import health, shapes, timeline
from counterfoil.cli.output import STYLES, Column, document, line, say, table
from counterfoil.cli.places import Place, placed, showing
from counterfoil.cli.text import command, escaped, value
from counterfoil.errors import LedgerCorrupt, UsageError
from counterfoil.protocol import exported, slots
from counterfoil.protocol.checker import ACKNOWLEDGED, CREATED, Checker, Finding, Item
from counterfoil.protocol.records import Record

_LOG_HELP = (
    'The recipient\'s own log, a JSON object a line: {"key": …, "item": …, "what": "created"}; '
    'what may be "acknowledged" for what a caller was told of. An item must equal the proof on record.'
)
_FROM_HELP = "Check an export instead of a ledger (damage is found only where payloads are shown)."


@click.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--recipient-log", "log", type=click.File(encoding="utf-8"), metavar="FILE", help=_LOG_HELP)
@click.option("--export", "source", type=click.File(encoding="utf-8"), metavar="FILE", help=_FROM_HELP)
@showing
@placed
def verify(place: Place, *, run_id: str | None, log: TextIO | None, source: TextIO | None) -> None:
    """Check whether what is on record may have come about, of the whole ledger or of one run.

    With a recipient's log: whether anything was done twice, is on record and was not done, or was done and is
    not on record. The exit code is 1 when something is found. What a changed body no longer asked for is shown, and
    is no finding.
    """
    items = None if log is None else [_item(number, text) for number, text in enumerate(log, 1) if text.strip()]
    written = functools.partial(value, shown=place.shown)
    if source is None:
        with place.open() as runtime:
            ids = [run_id] if run_id is not None else [view.run_id for view in runtime.runs()]
            history = ((each, runtime.ledger.read(runtime.namespace, each)) for each in ids)
            own = runtime.ledger.read(slots.SYSTEM_NAMESPACE, slots.SYSTEM_RUN)
            checker = Checker(runtime.namespace, items, written=written)
            checked, found = _check(checker, history, own=own, one=run_id)
    else:
        namespace, by_run, own = _read_export(source)
        chosen = by_run if run_id is None else {run_id: by_run.get(run_id, [])}
        checker = Checker(namespace, items, written=written)
        checked, found = _check(checker, chosen.items(), own=own, one=run_id)
    if place.as_json:
        said = [{"run": run, "unasked": list(heads)} for run, heads in checker.unasked.items()]
        document({"runs": checked, "findings": [shapes.finding(each) for each in found], "remarks": said})
    else:
        _tell(found)
        for run, heads in checker.unasked.items():
            for head in heads:
                line(f"run {escaped(run)}: the body that ended it no longer asked for {timeline.said(head)}")
        say(f"{_counted(checked, 'run')} checked, {_counted(len(found), 'finding')}")
    click.get_current_context().exit(1 if found else 0)


def _check(
    checker: Checker, history: Iterable[tuple[str, Any]], *, own: Any, one: str | None
) -> tuple[int, list[Finding]]:
    found = checker.ledger(own) if one is None else []
    count = 0
    for run_id, records in history:
        if one is not None and not records:
            raise UsageError(f"there is no run {one!r}", hint="`runs` lists them")
        found += checker.run(run_id, records)
        count += 1
    return count, found + (checker.rest() if one is None else [])


def _tell(found: list[Finding]) -> None:
    for each in found:
        named = f" {escaped(each.name)}" if each.name else ""
        where = f"run {escaped(each.run)}{named}" if each.run else f"key{named}"
        slot = f" [{escaped(each.slot)}]" if each.slot else ""
        line(f"{each.rule} {each.code}: {where}: {each.text}{slot}", style=STYLES["error"])


def _item(number: int, text: str) -> Item:
    try:
        found: Any = json.loads(text)
        key, item, what = found["key"], found["item"], found.get("what", CREATED)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"line {number} of the recipient's log is not such an object", hint=_LOG_HELP) from None
    if not isinstance(key, str) or what not in (CREATED, ACKNOWLEDGED):
        raise UsageError(f"line {number} of the recipient's log has another `key` or `what`", hint=_LOG_HELP)
    return Item(key, item, what)


def _read_export(source: TextIO) -> tuple[str, dict[str, list[Record]], list[Record]]:
    try:
        namespace = exported.parse_header(json.loads(source.readline()))
        by_run: dict[str, list[Record]] = {}
        own: list[Record] = []
        for text in source:
            scope, run_id, record = exported.parse_line(json.loads(text))
            (own if scope == slots.SYSTEM_NAMESPACE else by_run.setdefault(run_id, [])).append(record)
    except json.JSONDecodeError as error:
        raise UsageError(f"this is not an export of a ledger: {error}") from None
    return namespace, by_run, own


@click.command()
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Instead of stdout.")
@showing
@placed
def export(place: Place, *, output: Path | None) -> None:
    """Write every record of every run, one JSON object a line.

    The first line is a header that names the format, its version, and whether payloads are redacted. The
    key of the ledger's fingerprints is never exported.
    """
    with place.open() as runtime:
        try:
            count = _write(_lines(runtime, shown=place.shown), output)
        except OSError as error:
            if output is None:
                raise
            raise UsageError(f"cannot write {output}: {error.strerror or error}") from error
    say(f"{count - 1} records exported, payloads {'shown' if place.shown else 'redacted'}")


def _write(lines: Iterable[dict[str, Any]], output: Path | None) -> int:
    count = 0
    with click.open_file("-" if output is None else str(output), "w", encoding="utf-8") as stream:
        for found in lines:
            stream.write(json.dumps(found, ensure_ascii=True, separators=(",", ":")) + "\n")
            count += 1
    return count


def _lines(runtime: counterfoil.Runtime, *, shown: bool) -> Iterator[dict[str, Any]]:
    ledger, namespace = runtime.ledger, runtime.namespace
    yield exported.header(namespace, at=time.time(), shown=shown, software=counterfoil.__version__)
    places = [(slots.SYSTEM_NAMESPACE, slots.SYSTEM_RUN)]
    places += [(namespace, view.run_id) for view in runtime.runs()]
    for scope, run_id in places:
        for record in ledger.read(scope, run_id):
            yield exported.line(scope, run_id, record, shown=shown)


@click.command()
@placed
def doctor(place: Place) -> None:
    """Check what the guarantees rest on, and say how to mend what is wrong.

    The exit code is 1 when there is an error; warnings do not count.
    """
    try:
        with place.open() as runtime:
            found = health.examine(runtime, command=functools.partial(command, *place.options()))
    except LedgerCorrupt as error:
        # Without the record of its birth it cannot be opened.
        found = [("error", "fingerprint-key", str(error), health.KEY_LOST)]
    if place.as_json:
        keys = ("level", "subject", "found", "mend")
        document({"findings": [dict(zip(keys, each, strict=True)) for each in found]})
    else:
        columns = [Column("level"), Column("subject"), Column("found", fold=12), Column("mend", fold=12)]
        table(columns, [[level, subject, escaped(what), mend] for level, subject, what, mend in found])
    errors = sum(level == "error" for level, *_ in found)
    warnings = sum(level == "warning" for level, *_ in found)
    if not place.as_json:
        say(f"{_counted(errors, 'error')}, {_counted(warnings, 'warning')}")
    click.get_current_context().exit(1 if errors else 0)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


__all__ = ["doctor", "export", "verify"]

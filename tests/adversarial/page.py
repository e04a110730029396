"""The adversarial matrix as a page of the docs, made of what the tests expect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tests.adversarial import events, http
from tests.adversarial.cells import CAUSES, KILL, Cell
from tests.blobs import matrix as buckets
from tests.blobs import test_matrix as folders
from tests.http import test_phases as exchanges

HEAD = """\
# The adversarial matrix

<!-- Generated from the tables of the tests (tests/adversarial, tests/blobs, tests/http) by `make docs`. -->

What follows where something happens to an operation in one of its phases, for each kind of recipient. The tests make
each of these happen, in both colours, and compare what followed with these very tables:
`tests/adversarial/test_matrix.py` (requests, events), `tests/blobs/test_matrix.py` (blobs), `tests/http/test_phases.py`
(the phases of an exchange).

**Permits and connections** have no column: they are given back in every row, when the work is really over, and the
next operation is accepted. **The peer** says how often the recipient was reached: "0 or 1" where bytes that were on
their way may still arrive. **The ledger** says what has become of the attempt there: of an immediate operation with
`audit="required"`, or, for SIGKILL, of an effect, whose intent stands without an outcome. **A restart** says what
another life makes of it: what is recorded is final, and the intent of a killed process is reconciled. Nothing is ever
sent again.
"""
COLUMNS = "| phase | what happens | the caller is told | the peer | the ledger | a restart |"
BUCKET = "| phase | what happens | the caller is told | the peer has seen | the journal of uploads | a restart |"
RULE = "| --- | --- | --- | --- | --- | --- |"


def told(found: Iterable[tuple[str, str]]) -> str:
    """Say what callers are told, class by class."""
    classes: dict[str, list[str]] = {}
    for outcome, kind in sorted(found):
        classes.setdefault(outcome, []).append(kind)
    return "; ".join(f"`{name}` ({', '.join(kinds)})" for name, kinds in classes.items()) or "nobody is left"


def either(words: Iterable[object], *, code: bool = False) -> str:
    """Join alternatives."""
    return " or ".join(f"`{word}`" if code else str(word) for word in sorted(words, key=str))


def exchanged(phases: Iterable[str], expected: Callable[[str, str], Cell | None]) -> Iterator[str]:
    """The rows of one exchange: a request, an event."""
    yield COLUMNS
    yield RULE
    for phase in phases:
        for cause in (*CAUSES, KILL):
            if (cell := expected(phase, cause)) is not None:
                journal = "an intent" if cause == KILL else f"`{cell.journal}`"
                row = (phase, cause, told(cell.told), either(cell.peer), journal, either(cell.restart, code=True))
                yield f"| {' | '.join(row)} |"


def bucket() -> Iterator[str]:
    """The rows of a put to a bucket."""
    yield BUCKET
    yield RULE
    for phase, held in buckets.PHASES.items():
        for cause in (*buckets.CAUSES, KILL):
            cell = buckets.expected(phase, cause)
            killed = cause == KILL
            journal = "what was begun" if killed else "nothing" if cell.journal is None else f"`{cell.journal}`"
            left = "; its bytes are left: the record may still arrive" if cell.left else ""
            seen = told(()) if killed else told(cell.told)
            row = (phase, cause, seen, ", ".join(held.seen), journal, f"`{cell.restart}`{left}")
            yield f"| {' | '.join(row)} |"


def folder() -> Iterator[str]:
    """The rows of a put into a folder."""
    yield "| phase | what happens | the caller is told | blobs that can be seen | a restart |"
    yield "| --- | --- | --- | --- | --- |"
    for phase in folders.PHASES:
        before = phase != "renamed"
        for cause, kinds in folders.KINDS.items():
            outcome = "Rejected" if before else "Uncertain"
            said = told([(outcome, kinds[0 if before else 1])])
            yield f"| {phase} | {cause} | {said} | {0 if before else 1} | `{outcome}` |"
        restart = "Uncertain" if before else "Accepted"
        yield f"| {phase} | {KILL} | {told(())} | {0 if before else 1} | `{restart}` |"


def phases() -> Iterator[str]:
    """The rows of all phases of an HTTP exchange."""
    yield "| phase | what ends it | the outcome | or |"
    yield "| --- | --- | --- | --- |"
    for (phase, ending), (outcome, kind, reached) in exchanges.TABLE.items():
        also = exchanges.ALSO.get((phase, ending))
        other = "" if also is None else f"`{also[0]}` ({also[1]}, reached: {also[2]})"
        yield f"| {phase} | {ending} | `{outcome}` ({kind}, reached: {reached}) | {other} |"


def page() -> str:
    """The text of `docs/explanation/matrix.md`."""
    parts: dict[str, Iterator[str]] = {
        "HTTP requests": exchanged(http.PHASES, http.expected),
        "HTTP, every phase of the exchange": phases(),
        "Events": exchanged(events.PHASES, events.expected),
        "Blobs, into a folder": folder(),
        "Blobs, into a bucket": bucket(),
    }
    return (
        "\n".join([HEAD.rstrip(), *(line for title, rows in parts.items() for line in (f"\n## {title}\n", *rows))])
        + "\n"
    )


__all__ = ["page"]

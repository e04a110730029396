"""Writes the pages of the documentation that are generated from the code.

`docs/explanation/states.md` shows the transition tables of `counterfoil.protocol.states`, each as a
diagram and as a table, so that the page cannot say anything that the code does not do.
`docs/explanation/matrix.md` shows what the tests of the adversarial matrix expect. `--check` writes
nothing and fails when a page is out of date.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from counterfoil.protocol.states import EFFECT, PARK, STEP, TRANSACTION, Row, Table

ROOT = Path(__file__).resolve().parent.parent
STATES = ROOT / "docs" / "explanation" / "states.md"
MATRIX = ROOT / "docs" / "explanation" / "matrix.md"
TABLES = (EFFECT, STEP, TRANSACTION, PARK)

HEAD = """\
# States

<!-- Generated from src/counterfoil/protocol/states.py by `make docs`: change the tables there. -->

These are the tables that the code runs on: each row is a state, an event that may come in it, and
the state that follows. What is not in a table cannot happen.
"""


def diagram(rows: tuple[Row, ...]) -> Iterator[str]:
    """A Mermaid diagram; states get short aliases, since their names may hold any character."""
    states = list(dict.fromkeys(state for row in rows for state in (row.state, row.next_state)))
    alias = {state: f"s{number}" for number, state in enumerate(states)}
    left = {row.state for row in rows if row.state != row.next_state}
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield from (f'    state "{state}" as {alias[state]}' for state in states)
    yield f"    [*] --> {alias[states[0]]}"
    yield from (f"    {alias[row.state]} --> {alias[row.next_state]} : {row.event}" for row in rows)
    yield from (f"    {alias[state]} --> [*]" for state in states if state not in left)
    yield "```"


def listing(rows: tuple[Row, ...]) -> Iterator[str]:
    """A Markdown table of the rows."""
    yield "| state | event | next state | meaning |"
    yield "| --- | --- | --- | --- |"
    for row in rows:
        yield f"| {row.state} | {row.event} | {row.next_state} | {row.meaning} |"


def section(table: Table) -> list[str]:
    """One table's part of the page."""
    return [f"\n## {table.name.capitalize()}\n", *diagram(table.rows), "", *listing(table.rows)]


def states_page() -> str:
    """The text of `docs/explanation/states.md`."""
    return "\n".join([HEAD.rstrip(), *(line for table in TABLES for line in section(table))]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the generated pages of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    options = parser.parse_args()

    # The tests are found from the root, which is not where this file is.
    sys.path.insert(0, str(ROOT))
    from tests.adversarial.page import page as matrix_page

    stale = 0
    for path, text in ((STATES, states_page()), (MATRIX, matrix_page())):
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if options.check:
            print(f"error: {path.relative_to(ROOT)} is out of date: run `make docs`", file=sys.stderr)
            stale = 1
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return stale


if __name__ == "__main__":
    sys.exit(main())

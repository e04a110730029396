"""Says which rule of the specification is proved by how many tests.

A test proves a rule by naming it: `@pytest.mark.rule("E4")`, on a function, on a class (for each of
its tests), in `pytestmark` (for each test of the module) or in a parameter's marks. A test file
claims whole parts of the specification by `RULE_PARTS = ("E", "P")`; a rule of a claimed part
without a test is an error.

The specification's own text is read where it lies beside the repository; elsewhere its committed
list of ids, `docs/reference/rules.txt`, is. `--write` brings that list up to date.
"""

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT.parent / "shared" / "spec.md"
LIST = ROOT / "docs" / "reference" / "rules.txt"
WORDS = "W"  # the part that defines words and has no rules
PLACES = (ROOT / "tests", ROOT / "src" / "counterfoil" / "testing")

RULE_ID = re.compile(r"^- \*\*([A-Z]\d+)", re.MULTILINE)


@dataclass(kw_only=True)
class Found:
    """What the test files say: tests per rule, the files that name it, and the claimed parts."""

    tests: Counter[str] = field(default_factory=Counter)
    named_in: dict[str, set[str]] = field(default_factory=dict)
    claimed: dict[str, str] = field(default_factory=dict)

    def add(self, rules: list[str], tests: int, place: str) -> None:
        for rule in rules:
            self.tests[rule] += tests
            self.named_in.setdefault(rule, set()).add(place)


def in_order(rule: str) -> tuple[str, int]:
    """Sorts E2 before E10."""
    return rule[0], int(rule[1:])


def rules_of_the_spec(text: str) -> list[str]:
    """The ids of a specification's text, in its own order of parts."""
    return RULE_ID.findall(text)


def known_rules() -> list[str]:
    """Every rule id, from the specification if it is here, else from the committed list."""
    if SPEC.is_file():
        return rules_of_the_spec(SPEC.read_text(encoding="utf-8"))
    return LIST.read_text(encoding="utf-8").split()


def rule_marks_in(node: ast.AST) -> Iterator[ast.Call]:
    """The calls of `...mark.rule(...)` anywhere inside a node."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and is_rule_mark(call.func):
            yield call


def ids_of(call: ast.Call) -> list[str]:
    """The ids that one mark names."""
    return [
        argument.value
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def is_rule_mark(function: ast.expr) -> bool:
    """True for `pytest.mark.rule` and `mark.rule`."""
    if not (isinstance(function, ast.Attribute) and function.attr == "rule"):
        return False
    owner = function.value
    return getattr(owner, "attr", getattr(owner, "id", None)) == "mark"


def is_test(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


def tests_in(node: ast.AST) -> int:
    """How many tests stand inside a class or module."""
    return sum(is_test(inner) for inner in ast.walk(node))


def assigned(module: ast.Module, name: str) -> ast.expr | None:
    """The value that a module assigns to a name at its top level."""
    for statement in module.body:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return statement.value
    return None


def marked(module: ast.Module) -> Iterator[tuple[ast.AST, int]]:
    """Yields (where a mark may stand, number of tests it applies to there)."""
    everywhere = assigned(module, "pytestmark")
    if everywhere is not None:
        yield everywhere, tests_in(module)
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield from ((decorator, tests_in(node)) for decorator in node.decorator_list)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((decorator, int(is_test(node))) for decorator in node.decorator_list)
    # What is left stands in a table of parameters, one test each.
    yield module, 1


def marks_of(module: ast.Module) -> Iterator[tuple[list[str], int]]:
    """Yields (ids, number of tests they apply to) for every mark of a test module."""
    seen: set[ast.Call] = set()
    for place, tests in marked(module):
        for call in rule_marks_in(place):
            if call not in seen:
                seen.add(call)
                yield ids_of(call), tests


def read_tests(files: list[Path]) -> Found:
    """Reads what the given test files prove and claim."""
    found = Found()
    for file in files:
        module = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
        place = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else str(file)
        for rules, tests in marks_of(module):
            found.add(rules, tests, place)
        parts = assigned(module, "RULE_PARTS")
        if parts is not None:
            for part in ast.literal_eval(parts):
                found.claimed.setdefault(part, place)
    return found


def test_files() -> list[Path]:
    return sorted(file for place in PLACES if place.is_dir() for file in place.rglob("*.py"))


def faults(rules: list[str], found: Found) -> list[str]:
    """Everything that must not stay: unknown ids and parts, claimed rules without a test."""
    parts = {rule[0] for rule in rules} | {WORDS}
    lines = [
        f"{rule} is no rule of the specification, but {', '.join(sorted(files))} names it"
        for rule, files in sorted(found.named_in.items())
        if rule not in rules
    ]
    lines += [
        f"part {part} has no rules, but {place} claims it"
        for part, place in sorted(found.claimed.items())
        if part not in parts
    ]
    lines += [
        f"{rule} has no test, but {found.claimed[rule[0]]} claims part {rule[0]}"
        for rule in rules
        if rule[0] in found.claimed and not found.tests[rule]
    ]
    return lines


def report(rules: list[str], found: Found) -> Iterator[str]:
    """The table: each part, its rules with their number of tests, and what is missing."""
    for part in dict.fromkeys(rule[0] for rule in rules):
        own = [rule for rule in rules if rule[0] == part]
        proved = sum(found.tests[rule] > 0 for rule in own)
        claim = "  claimed" if part in found.claimed else ""
        yield f"{part}  {proved} of {len(own)} rules have a test{claim}"
        yield "   " + "  ".join(f"{rule}:{found.tests[rule]}" for rule in own)
    missing = [rule for rule in rules if not found.tests[rule]]
    yield f"without a test ({len(missing)}): {' '.join(missing) or 'none'}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Which rule is proved by how many tests.")
    parser.add_argument("--quiet", action="store_true", help="print only what is wrong")
    parser.add_argument("--write", action="store_true", help=f"write {LIST.relative_to(ROOT)}")
    options = parser.parse_args()

    rules = known_rules()
    listed = "".join(f"{rule}\n" for rule in rules)
    if options.write:
        LIST.parent.mkdir(parents=True, exist_ok=True)
        LIST.write_text(listed, encoding="utf-8")
    found = read_tests(test_files())
    wrong = faults(rules, found)
    if LIST.read_text(encoding="utf-8") != listed:
        wrong.append(f"{LIST.relative_to(ROOT)} is out of date: run `tools/rules.py --write`")
    if not options.quiet:
        print("\n".join(report(rules, found)))
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs the mutants of the pure rooms and compares those that live with the ones that are known to.

`make mutate` changes one thing at a time in `protocol/` and `effects/` (`mutmut`, configured in `pyproject.toml`) and
runs the tests that reach it. A mutant that no test notices is a fact that no test shows, or a change that changes
nothing. `docs/explanation/mutants.md` lists the second kind, each under its reason. A mutant that lives and is not
listed is an error, and so is one that is listed and does not live.

    python tools/mutants.py            run them all, or go on where the last run stopped
    python tools/mutants.py NAME ...   only these, for example 'counterfoil.effects.park.*'
    python tools/mutants.py --compare  run nothing, compare what the last run found
"""

import argparse
import ast
import difflib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = ROOT / "mutants" / "src"
PAGE = ROOT / "docs" / "explanation" / "mutants.md"

KILLED = {1, 3, 24, -24, 152, 255, 36, -9, -11}  # a failed test, or one that did not end
CHILDREN = 1

Change = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Mutant:
    """One mutant: its name, what became of it (None: not tried yet), and where its source is."""

    name: str
    code: int | None
    file: Path

    @property
    def module(self) -> str:
        return self.name.removeprefix("counterfoil.").rpartition(".")[0]

    @property
    def mangled(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def function(self) -> str:
        """The function as it is called in the source: `effects.park.sleep`, `protocol.states.Table.next`."""
        plain = self.mangled.rpartition("__mutmut_")[0]
        named = plain.removeprefix("xǁ").replace("ǁ", ".") if plain.startswith("xǁ") else plain.removeprefix("x_")
        return f"{self.module}.{named}"


def found() -> list[Mutant]:
    """All mutants of the last run."""
    mutants = []
    for meta in sorted(MUTANTS.rglob("*.meta")):
        if "__mutmut_orig" not in meta.with_suffix("").read_text(encoding="utf-8"):
            continue  # from a run that was configured otherwise
        codes = json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]
        mutants += [Mutant(name, code, meta.with_suffix("")) for name, code in codes.items()]
    return mutants


def change(mutant: Mutant, sources: dict[Path, dict[str, list[str]]]) -> Change:
    """What a mutant changes: the function, and its lines as a diff marks them, each statement on one line."""
    if mutant.file not in sources:
        sources[mutant.file] = functions(mutant.file.read_text(encoding="utf-8"))
    known = sources[mutant.file]
    plain = mutant.mangled.rpartition("__mutmut_")[0]
    before, after = (
        [line.replace(name, "…") for line in known[name]] for name in (f"{plain}__mutmut_orig", mutant.mangled)
    )
    diff = difflib.unified_diff(before, after, n=0, lineterm="")
    lines = [line for line in diff if line[:2] not in ("--", "++", "@@")]
    return mutant.function, tuple(f"{line[0]} {line[1:].strip()}" for line in lines)


def functions(source: str) -> dict[str, list[str]]:
    """The lines of each function of a module, by name."""
    return {
        node.name: ast.unparse(node).splitlines()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def listed(text: str) -> Iterator[Change]:
    """The changes in the page's `diff` blocks: a line that names a function, then the marked lines of each change."""
    function, inside = "", False
    lines: list[str] = []
    for line in [*text.splitlines(), "```"]:
        marked = inside and line[:2] in ("- ", "+ ")
        if lines and not (marked and not (line[0] == "-" and lines[-1][0] == "+")):
            yield function, tuple(lines)
            lines = []
        if marked:
            lines.append(line)
        elif line.startswith("```"):
            inside = line == "```diff"
        elif inside and line.strip():
            function = line.strip()


def run(names: list[str]) -> None:
    """Let `mutmut` try the mutants that were not tried yet or lived, or these."""
    # Which test reaches what is found out anew, since functions come and go; a new test may kill what lived.
    (ROOT / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)
    for meta in MUTANTS.rglob("*.meta"):
        known = json.loads(meta.read_text(encoding="utf-8"))
        codes = known["exit_code_by_key"]
        known["exit_code_by_key"] = {name: code if code in KILLED else None for name, code in codes.items()}
        meta.write_text(json.dumps(known), encoding="utf-8")
    mutmut = Path(sys.executable).with_name("mutmut")
    command = [str(mutmut), "run", "--max-children", str(CHILDREN), *names]
    quiet = None if sys.stdout.isatty() else subprocess.PIPE
    done = subprocess.run(command, cwd=ROOT, stdout=quiet, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{done.stdout or ''}\nmutmut ended with {done.returncode}")


def report(mutants: list[Mutant], known: set[Change]) -> int:
    """Print the score and what is wrong; 1 if something is."""
    sources: dict[Path, dict[str, list[str]]] = {}
    tried = [mutant for mutant in mutants if mutant.code is not None]
    living = {change(mutant, sources): mutant for mutant in tried if mutant.code not in KILLED}
    modules = Counter(mutant.module for mutant in tried)
    of_module = Counter(mutant.module for mutant in living.values())
    for module, count in sorted(modules.items()):
        print(f"{module:22} {count:5} mutants, {of_module[module]:3} live")
    killed = len(tried) - len(living)
    print(f"{'':22} {len(tried):5} mutants, {killed} killed ({killed / max(1, len(tried)):.1%}), {len(living)} live")
    new = [made for made in living if made not in known]
    for function, lines in sorted(new):
        print("", function, *lines, sep="\n")
    stale = sorted(known - living.keys()) if len(tried) == len(mutants) else []
    for function, lines in stale:
        print("", f"listed, and does not live: {function}", *lines, sep="\n")
    if new:
        print(f"\n{len(new)} live that are not listed: kill each by a test, or list it in {PAGE.relative_to(ROOT)}")
    if len(tried) < len(mutants):
        print(f"\n{len(mutants) - len(tried)} mutants were not tried")
    return 1 if new or stale else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these mutants; may have * in them")
    parser.add_argument("--compare", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if not arguments.compare:
        os.nice(10)
        run(arguments.names)
    return report(found(), set(listed(PAGE.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    sys.exit(main())

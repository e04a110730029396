"""The rules of the house that no linter knows: sizes, names, and what only one room may do."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tools import rules

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "counterfoil"

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500
PORT_METHODS_MAX = 8
POSITIONAL_MAX = 3

# The public face pins these: (event, id, payload) with the run before it.
PINNED_SIGNATURES = {"Runtime.deliver": 4, "AsyncRuntime.deliver": 4}

PURE_ROOMS = ("errors", "outcomes", "protocol", "effects", "broker", "outbox")
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "core", "base", "models", "misc"}
FORBIDDEN_IMPORTS = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
STARTS_THREADS_OR_LOOPS = {
    "Thread",
    "Timer",
    "start_new_thread",
    "ThreadPoolExecutor",
    "ProcessPoolExecutor",
    "new_event_loop",
    "to_thread",
    "asyncio.run",
    "asyncio.Runner",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file: its place below the package or repository, its text and its tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The first part of the path below the package: `ledgers`, `errors`."""
        return self.path.parts[0].removesuffix(".py")

    def at(self, node: ast.AST) -> str:
        return f"{self.path.as_posix()}:{getattr(node, 'lineno', 1)}"


@cache
def modules_below(folder: Path) -> tuple[Module, ...]:
    return tuple(
        Module(file.relative_to(folder), text, ast.parse(text, filename=str(file)))
        for file in sorted(folder.rglob("*.py"))
        for text in [file.read_text(encoding="utf-8")]
    )


def package() -> tuple[Module, ...]:
    return modules_below(PACKAGE)


def sized() -> Iterator[Module]:
    """Everything whose size is bounded: what ships and what is run beside it."""
    for folder in (PACKAGE, ROOT / "tools", ROOT / "benchmarks", ROOT / "examples"):
        yield from modules_below(folder)


def functions(node: ast.AST, prefix: str = "", *, in_class: bool = False) -> Iterator[tuple[str, Function, bool]]:
    """Yields (qualified name, function, whether it is a method) for everything inside a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield f"{prefix}{child.name}", child, in_class
            yield from functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.", in_class=True)
        else:
            yield from functions(child, prefix, in_class=in_class)


def body_lines(function: Function) -> int:
    """The lines from the first statement after the docstring to the last."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def positional(function: Function, *, method: bool) -> int:
    """How many parameters may be given by position, not counting self or cls."""
    static = any(getattr(mark, "id", None) == "staticmethod" for mark in function.decorator_list)
    return len(function.args.posonlyargs + function.args.args) - (method and not static)


def imported(module: Module) -> Iterator[tuple[str, ast.AST]]:
    """Yields (dotted name, node) for everything that a module imports."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((f"{node.module}.{alias.name}", node) for alias in node.names)


def expect_none(offences: Iterable[str]) -> None:
    """Fails with one line for each offence."""
    lines = list(offences)
    assert not lines, "\n".join(["", *lines])


def test_every_module_says_what_it_is_for() -> None:
    expect_none(m.path.as_posix() for m in sized() if not ast.get_docstring(m.tree))


def test_functions_fit_on_a_page() -> None:
    expect_none(
        f"{module.at(function)} {name} has {body_lines(function)} lines"
        for module in sized()
        for name, function, _ in functions(module.tree)
        if body_lines(function) > FUNCTION_LINES_MAX
    )


def test_modules_can_be_read_in_one_sitting() -> None:
    expect_none(
        f"{module.path.as_posix()} has {lines} lines"
        for module in sized()
        if (lines := module.text.count("\n")) > MODULE_LINES_MAX
    )


def test_ports_stay_narrow() -> None:
    expect_none(
        f"{module.at(node)} {node.name} has {len(methods)} methods"
        for module in package()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        and any("Protocol" in ast.unparse(parent) for parent in node.bases)
        and len(methods := [name for name in node.body if isinstance(name, Function)]) > PORT_METHODS_MAX
    )


def test_what_is_given_by_position_can_be_remembered() -> None:
    expect_none(
        f"{module.at(function)} {name} takes {count} parameters by position"
        for module in package()
        for name, function, method in functions(module.tree)
        if (count := positional(function, method=method)) > PINNED_SIGNATURES.get(name, POSITIONAL_MAX)
    )


def test_no_module_is_named_after_nothing() -> None:
    named = {part.removesuffix(".py") for module in package() for part in module.path.parts}
    expect_none(named & FORBIDDEN_NAMES)


def test_only_the_command_line_reads_the_environment() -> None:
    expect_none(
        module.at(node)
        for module in package()
        # A `Secret("env:NAME")` reads the variable that the caller's own code names, when it is needed.
        if module.room != "cli" and module.path.as_posix() != "recipients/secret.py"
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"})
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and any(alias.name in {"environ", "environb", "getenv"} for alias in node.names)
        )
    )


def test_nothing_is_pickled() -> None:
    expect_none(
        f"{module.at(node)} {name}"
        for module in package()
        for name, node in imported(module)
        if name.partition(".")[0] in FORBIDDEN_IMPORTS
    )


def test_only_threads_starts_threads_and_loops() -> None:
    ends = {name.rpartition(".")[2] for name in STARTS_THREADS_OR_LOOPS}

    def starts(call: ast.Call) -> bool:
        if getattr(call.func, "attr", getattr(call.func, "id", "")) not in ends:
            return False
        called = ast.unparse(call.func)
        return not {called, called.rpartition(".")[2]}.isdisjoint(STARTS_THREADS_OR_LOOPS)

    expect_none(
        f"{module.at(node)} {ast.unparse(node.func)}"
        for module in package()
        if module.room != "threads"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and starts(node)
    )


def test_nothing_that_ships_imports_the_testing_room() -> None:
    expect_none(
        f"{module.at(node)} {name}"
        for module in package()
        # `counterfoil simulate` and `counterfoil audit-client` are the doors to the testing room.
        if module.room != "testing" and module.path.as_posix() not in {"cli/simulating.py", "cli/auditing.py"}
        for name, node in imported(module)
        if name.startswith("counterfoil.testing")
    )


def test_every_pure_room_is_under_the_contract_of_purity() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (pure,) = [contract for contract in contracts if contract["type"] == "forbidden"]
    present = {f"counterfoil.{m.room}" for m in package() if m.room in PURE_ROOMS}
    expect_none(present - set(pure["source_modules"]))


def test_every_rule_that_a_test_names_is_a_rule_of_the_specification() -> None:
    named = rules.read_tests(rules.test_files()).named_in
    expect_none(set(named) - set(rules.known_rules()))


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ('@pytest.mark.rule("E1", "E2")\ndef test_a(): ...', {"E1": 1, "E2": 1}),
        ('@pytest.mark.rule("E1")\nclass A:\n def test_a(x): ...\n def test_b(x): ...', {"E1": 2}),
        ('pytestmark = [pytest.mark.rule("E1")]\ndef test_a(): ...\ndef test_b(): ...', {"E1": 2}),
        ('CASES = [pytest.param(1, marks=pytest.mark.rule("E1"))]', {"E1": 1}),
        ('@pytest.fixture\n@pytest.mark.rule("E1")\ndef not_a_test(): ...', {"E1": 0}),
    ],
)  # fmt: skip
def test_tests_are_counted_for_the_rules_they_name(tmp_path: Path, source: str, tests: dict[str, int]) -> None:
    file = tmp_path / "test_sample.py"
    file.write_text(source, encoding="utf-8")
    assert dict(rules.read_tests([file]).tests) == tests


def test_a_claimed_part_with_an_unproved_rule_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "test_sample.py"
    file.write_text('RULE_PARTS = ("W", "E")\n@pytest.mark.rule("E1")\ndef test_a(): ...', "utf-8")
    (fault,) = rules.faults(["E1", "E2", "L1"], rules.read_tests([file]))
    assert fault.startswith("E2 has no test")


def test_pins_carry_hashes_and_name_no_address() -> None:
    for file in sorted((ROOT / "requirements").glob("*.txt")):
        text = file.read_text(encoding="utf-8")
        pins = re.findall(r"^[a-z0-9][^\n]*==", text, re.MULTILINE)
        assert pins
        assert "://" not in text
        assert "--index" not in text
        assert all("--hash=" in block for block in re.split(r"\n(?=[a-z0-9])", text) if "==" in block)


def test_the_version_is_told_once() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert importlib.metadata.version("counterfoil") == settings["project"]["version"]


def test_the_wheel_holds_the_library_and_its_types_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "counterfoil/py.typed" in names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"counterfoil", f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"}

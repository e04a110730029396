"""Reads the pages of the documentation and runs what is in them.

On a page, in order, with one folder and one namespace for the whole page:

- a `python` block is executed, and may await at its top level; one that opens with `# name.py` is a file;
- a `text` block right after it is what it printed;
- a `console` block holds commands after `$ ` and what they print.

`...` stands for anything, and any time, age, life or key for any other. A `sh` block is for commands that need
a network or a server; it is not run.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import itertools
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FENCE = re.compile(r"^```([a-z]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^# ([\w-]+\.py)\n")
LANGUAGES = {"python", "text", "console", "sh", "mermaid", "sql", "toml", "json", "diff"}
COMMAND_S_MAX = 300.0
# What differs each time: when, how long ago, which life, which key.
SAME = (
    (re.compile(r"\d{4}-\d\d-\d\d(?= )"), "DATE"),
    (re.compile(r"\d\d:\d\d:\d\d(\.\d+)?"), "TIME"),
    (re.compile(r"\d+ (s|min|h|d) ago"), "AGO"),
    (re.compile(r"\b\d+\.[0-9a-f]{4}\b"), "LIFE"),
    (re.compile(r"\bcf-[0-9a-f]{40}\b"), "cf-KEY"),
    (re.compile(r"  +"), " "),
)


def all_pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """One fenced block, and the line of the page where its text starts."""

    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(found[1], found[2], text.count("\n", 0, found.start()) + 2) for found in FENCE.finditer(text)]


def fits(expected: str, printed: str) -> bool:
    """Compare what a page shows with what was printed, whatever the time is and however wide the columns."""

    def trimmed(text: str) -> str:
        for pattern, word in SAME:
            text = pattern.sub(word, text)
        return "\n".join(line.rstrip() for line in text.strip().splitlines())

    parts = [re.escape(part) for part in trimmed(expected).split("...")]
    return re.fullmatch(".*".join(parts), trimmed(printed), re.DOTALL) is not None


def check(expected: str, printed: str, where: str) -> None:
    if not fits(expected, printed):
        raise AssertionError(f"{where}: the page says\n{expected}\nbut this was printed:\n{printed}")


@dataclass
class Reader:
    """Runs the blocks of one page in a folder."""

    page: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Run every block, in order."""
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("COUNTERFOIL", "PYTEST"))}
        binaries = str(Path(sys.executable).parent)
        self.environment |= {
            "PATH": f"{binaries}{os.pathsep}{self.environment.get('PATH', '')}",
            "NO_COLOR": "1",
            "COLUMNS": "120",
            "PYTHONUNBUFFERED": "1",
        }
        module = types.ModuleType(f"page_{self.page.stem.replace('-', '_')}")
        sys.modules[module.__name__] = module
        printed: str | None = None
        try:
            with asyncio.Runner() as runner:
                for block in blocks_of(self.page):
                    where = f"{self.page.relative_to(ROOT)}:{block.line}"
                    if block.language == "text" and printed is not None:
                        check(block.text, printed, where)
                    printed = None
                    if block.language == "python":
                        printed = self._python(block, module, runner)
                    elif block.language == "console":
                        self._console(block, where)
        finally:
            del sys.modules[module.__name__]

    def _python(self, block: Block, module: types.ModuleType, runner: asyncio.Runner) -> str | None:
        if file := FILE.match(block.text):
            compile(block.text, file[1], "exec")
            (self.folder / file[1]).write_text(block.text, encoding="utf-8")
            return None
        source = "\n" * (block.line - 1) + block.text
        code = compile(source, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, module.__dict__))
            else:
                exec(code, module.__dict__)
        return printed.getvalue()

    def _console(self, block: Block, where: str) -> None:
        for command, expected in commands_of(block.text):
            if export := re.fullmatch(r"export (\w+)=(\S+)", command):
                self.environment[export[1]] = export[2]
                continue
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_S_MAX,
                check=False,
            )
            assert expected.strip() != "...", f"{where}: say something about what {command} prints"
            check(expected, done.stdout, f"{where}: $ {command}")


def commands_of(text: str) -> Iterator[tuple[str, str]]:
    """Take a console block apart: each command, which goes on in lines that open with `> `, and what it prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        first, *rest = part.splitlines()
        more = list(itertools.takewhile(lambda line: line.startswith("> "), rest))
        yield "\n".join([first, *(line.removeprefix("> ") for line in more)]), "\n".join(rest[len(more) :])

"""Every page of the documentation is true: what it shows is run, and what it links to is there."""

import inspect
import re
from pathlib import Path

import pytest

import counterfoil
from tests.docs.pages import FILE, LANGUAGES, ROOT, Reader, all_pages, blocks_of, fits

PAGES = all_pages()
# What needs a database server.
ON_A_SERVER = ("counterfoil migrate ", "counterfoil accept-restore ", "export COUNTERFOIL_LEDGER=")
RUN_BY_HAND = ("pip ", "make ", "git ", "gunicorn ", "uvicorn ", "python -m venv", "source ", "psql ", *ON_A_SERVER)
# A link, but not an image and not inside code.
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, made as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Reader(page, tmp_path).run()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_only_blocks_that_are_understood(page: Path) -> None:
    blocks = blocks_of(page)
    text = page.read_text(encoding="utf-8")
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(blocks)
    assert {block.language for block in blocks} <= LANGUAGES
    commands = [b.text for b in blocks if b.language == "console"]
    for block in blocks:
        if block.language == "sh":
            lines = [line for line in block.text.splitlines() if line and not line.startswith("#")]
            assert all(line.startswith(RUN_BY_HAND) for line in lines), block.text
        if file := FILE.match(block.text):
            assert any(file[1] in command for command in commands), f"{file[1]} is never run"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {link}, which is not there"
        if anchor:
            assert anchor in anchors_of(target), f"{name_of(page)} links to {link}: no such heading"


def test_every_page_can_be_reached_from_the_first_one() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        links = LINK.findall(without_code(page.read_text(encoding="utf-8")))
        todo += [(page.parent / link.partition("#")[0]).resolve() for link in links if "://" not in link]
    assert set(PAGES) <= reached


def test_every_public_name_is_in_the_reference() -> None:
    reference = "\n".join(p.read_text("utf-8") for p in (ROOT / "docs" / "reference").glob("*.md"))
    missing = [name for name in counterfoil.__all__ if not re.search(rf"\b{name}\b", reference)]
    assert not missing


def test_every_method_and_argument_of_the_runtimes_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "reference" / "runtime.md").read_text(encoding="utf-8")
    missing = []
    for shape in (counterfoil.Runtime, counterfoil.Run):
        for name, method in inspect.getmembers(shape, inspect.isfunction):
            if name.startswith("_") and name != "__init__":
                continue
            if name != "__init__" and f"`{name}" not in reference and f".{name}(" not in reference:
                missing.append(f"{shape.__name__}.{name}")
            parameters = list(inspect.signature(method).parameters)[1:]
            missing += [
                f"{shape.__name__}.{name}({parameter})"
                for parameter in parameters
                if not re.search(rf"\b{parameter}\b", reference)
            ]
    assert not missing


def test_three_dots_stand_for_anything() -> None:
    assert fits("a ... c\n", "a b c")
    assert fits("first\n...\nlast", "first\n1\n2\nlast  \n")
    assert not fits("a ... c", "a b d")


def test_every_command_and_option_is_in_the_reference_and_nothing_else() -> None:
    pytest.importorskip("click")
    from counterfoil.cli.commands import program

    page = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    rows = {
        row[1]: row[0] for row in re.finditer(r"^\| `([a-z][\w-]*(?: [a-z][\w-]*)*)[^`]*` \|.*$", page, re.MULTILINE)
    }
    everywhere = {"--ledger", "--namespace", "--json", "--help"}
    commands = {**program.commands}
    for group, found in program.commands.items():
        commands |= {f"{group} {name}": one for name, one in getattr(found, "commands", {}).items()}
    wrong = [f"{name} is no command" for name in rows if name not in commands]
    for name, command in commands.items():
        options = {
            o
            for p in command.params
            if p.param_type_name == "option"
            for o in (*p.opts, *p.secondary_opts)
            if o.startswith("--")
        }
        shown = set(re.findall(r"`(--[\w-]+)", rows.get(name, "")))
        if name not in rows or shown != options - everywhere:
            wrong.append(f"{name}: the page has {sorted(shown)}, the command {sorted(options - everywhere)}")
    assert not wrong


def test_every_code_of_an_error_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "counterfoil"
    codes = {
        code
        for room in ("effects", "ledgers", "outbox", "runtime", "staging", "protocol/codec.py")
        for file in ([source / room] if room.endswith(".py") else (source / room).rglob("*.py"))
        for code in re.findall(r'\bcode="([\w-]+)"', file.read_text(encoding="utf-8"))
    }
    assert not {code for code in codes if f"`{code}`" not in page}

"""What the commands that look show, hide, and never do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from counterfoil import Runtime, UsageError
from counterfoil.cli.commands import program
from counterfoil.cli.text import age, escaped, given, value, word
from counterfoil.ledgers.memory import MemoryLedger
from counterfoil.protocol import keys
from tests.cli.terminal import SECRET, SHOP, Terminal, fill

LOOKING = [["runs"], ["effects"], ["uncertain"], ["show", SHOP], ["verify"], ["export"], ["doctor"]]
CODES = {"uncertain": 1}


def test_tables_are_aligned_text_where_no_terminal_reads_them(shop: Terminal) -> None:
    head, row = shop("runs").stdout.splitlines()
    assert head.split() == ["run", "state", "began", "finished"]
    assert row.startswith(f"{SHOP}  open ")
    assert "\x1b" not in shop("effects").stdout


def test_data_goes_to_stdout_and_talk_to_stderr(shop: Terminal) -> None:
    result = shop("effects")
    assert result.stderr == "4 effects\n"
    assert "4 effects" not in result.stdout
    assert shop("--json", "effects").stderr == ""


def test_the_options_of_all_commands_may_stand_before_or_after_the_command(shop: Terminal) -> None:
    before = shop("--json", "runs").stdout
    assert shop("runs", "--json", "--ledger", shop.url, ledger=False).stdout == before
    named = CliRunner().invoke(program, ["runs", "--json"], env={"COUNTERFOIL_LEDGER": shop.url})
    assert named.stdout == before


def test_a_run_is_described(shop: Terminal) -> None:
    (found,) = shop.json("runs")["runs"]
    assert found == {"run": SHOP, "state": "open", "began": found["began"], "finished": None}
    assert isinstance(found["began"], float)
    assert shop.json("runs", "--state", "finished") == {"runs": []}


def test_an_effect_is_described(shop: Terminal) -> None:
    by_name = {found["effect"]: found for found in shop.json("effects")["effects"]}
    assert {name: found["state"] for name, found in by_name.items()} == {
        "charge": "accepted",
        "door": "uncertain",
        "refused": "rejected",
        "open": "unresolved",
    }
    charge = by_name["charge"]
    assert charge["outcome"] == {
        "class": "accepted",
        "via": "run",
        "proof": "\u2039redacted 12 bytes\u203a",
        "evidence": {"kind": "acknowledged", "phase": "acknowledged"},
    }
    assert set(charge) == {
        "run", "effect", "attempt", "state", "since", "age_s", "version", "key", "outcome", "late_evidence", "decision",
    }  # fmt: skip
    assert by_name["open"]["outcome"] is None
    assert [found["effect"] for found in shop.json("effects", "--state", "uncertain", "--run", SHOP)["effects"]] == [
        "door"
    ]


def test_a_timeline_is_described(shop: Terminal) -> None:
    found = shop.json("show", SHOP)
    assert (found["run"], found["state"]) == (SHOP, "open")
    assert set(found["records"][0]) == {
        "position", "at", "kind", "phase", "name", "attempt", "epoch", "body", "slot",
    }  # fmt: skip
    assert len(found["effects"]) == 4


def test_a_timeline_is_shown_with_what_is_known_and_what_can_be_done(shop: Terminal) -> None:
    shown = shop("show", SHOP).stdout
    assert "effect door: uncertain" in shown
    assert "known: its run raised; nobody knows whether it arrived; the recipient cannot be asked" in shown
    assert "nothing is on record" not in shown
    assert shown.count("  key: cf-") == 4
    assert "--new-name NAME: it may be sent again" in shown
    assert f"counterfoil --ledger {shop.url} decide {SHOP} door --expect-version 2 --by YOU" in shown
    assert "known: its intent is on record; its run raised; nobody knows whether it arrived; the next call" in shown


def test_the_command_that_is_shown_decides(shop: Terminal) -> None:
    shown = shop("show", SHOP).stdout.splitlines()
    command = next(line for line in shown if "--did-not-happen" in line).split()[3:]
    assert "did not happen" in shop(*command).stdout
    assert "decided by YOU" in shop("show", SHOP).stdout
    again = shop(*command, code=4)
    assert again.stderr.startswith("counterfoil: effect 'door' was decided already by YOU")
    assert again.stderr.endswith("; nothing was recorded\n")
    assert again.stderr.count("\n") == 1


def test_uncertain_is_fit_for_alerts(shop: Terminal, change: Callable[..., Any]) -> None:
    assert "door" in shop("uncertain", code=1).stdout
    assert [found["effect"] for found in shop.json("uncertain", code=1)["uncertain"]] == ["door"]
    change(lambda r: r.decide(SHOP, "door", happened="d1", reason="seen", by="ann", expect_version=2))
    assert shop("uncertain").stdout == ""
    assert shop.json("uncertain") == {"uncertain": []}
    assert len(shop.json("uncertain", "--all")["uncertain"]) == 1


@pytest.mark.rule("N6")
@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
@pytest.mark.parametrize("style", [[], ["--json"]], ids=["table", "json"])
def test_nothing_of_the_users_is_shown_unless_asked_for(shop: Terminal, words: list[str], style: list[str]) -> None:
    result = shop(*style, *words, code=CODES.get(words[0], 0))
    assert SECRET not in result.stdout + result.stderr


@pytest.mark.rule("N6")
@pytest.mark.parametrize("words", [["effects"], ["show", SHOP], ["export"], ["--json", "show", SHOP]], ids=" ".join)
def test_payloads_are_shown_where_they_are_asked_for(shop: Terminal, words: list[str]) -> None:
    result = shop(*words, "--show-payloads")
    assert SECRET in result.stdout


@pytest.mark.rule("N1")
@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_looking_records_nothing_and_registers_nobody(shop: Terminal, words: list[str]) -> None:
    def state() -> Any:
        with Runtime(shop.url) as runtime:
            ledger = runtime.ledger
            assert hasattr(ledger, "owners")
            assert hasattr(ledger, "changes")
            return ledger.owners(), ledger.changes(-1), [r for v in runtime.runs() for r in runtime.show(v.run_id)]

    before = state()
    shop(*words, code=CODES.get(words[0], 0))
    assert state() == before


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_looking_makes_no_ledger(tmp_path: Path, words: list[str]) -> None:
    result = Terminal(f"sqlite:///{tmp_path / 'none.db'}")(*words, code=3)
    assert "the ledger is unavailable: there is none at" in result.stderr
    assert "`counterfoil migrate`" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "said", "code"),
    [
        (lambda path: path.mkdir(), "is a folder", 2),
        (lambda path: path.write_bytes(b""), "has no ledger in it", 2),
        (lambda path: path.write_text("no database " * 100), "is no SQLite database", 2),
    ],
    ids=["folder", "empty", "text"],
)
def test_what_is_no_ledger_is_said_in_one_line(tmp_path: Path, make: Any, said: str, code: int) -> None:
    path = tmp_path / "x.db"
    make(path)
    result = Terminal(f"sqlite:///{path}")("runs", code=code)
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory:", "memory: is a new ledger each time"),
        ("nonsense", "is not a ledger URL"),
        ("mysql://host/db", "there is no ledger for"),
    ],
)
def test_a_url_that_names_nothing_to_see_is_refused(url: str, said: str) -> None:
    assert said in Terminal(url)("runs", code=2).stderr


def test_without_a_ledger_the_mend_is_said() -> None:
    result = Terminal("")("runs", code=2, ledger=False)
    assert "no ledger is named" in result.stderr
    assert "COUNTERFOIL_LEDGER" in result.stderr


def test_a_ledger_that_is_gone_is_another_exit_code(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    ledger.close()
    result = CliRunner().invoke(program, ["runs"], obj=ledger, env={"COUNTERFOIL_LEDGER": None})
    assert result.exit_code == 3
    assert result.stderr.startswith("counterfoil: this ledger is closed")


def test_a_run_that_is_not_there_is_said(shop: Terminal) -> None:
    assert "there is no run 'other'" in shop("show", "other", code=2).stderr


# --- names on every surface

HOSTILE = [
    pytest.param("\u202egnp.exe", r"\u202egnp.exe", id="right-to-left override"),
    pytest.param("a\u200bb", r"a\u200bb", id="zero width"),
    pytest.param("a\u00a0b", r"a\xa0b", id="odd space", marks=()),
    pytest.param("\U000e0041", r"\U000e0041", id="tag"),
    pytest.param(" edge ", r"\x20edge\x20", id="spaces at the edges"),
    pytest.param("[red]x[/]", "[red]x[/]", id="markup"),
    pytest.param(":smile:", ":smile:", id="emoji code"),
    pytest.param("😀", "😀", id="emoji"),
    pytest.param("../x", "../x", id="path"),
    pytest.param("%s%d{0}", "%s%d{0}", id="format"),
    pytest.param("a\"b'c`d", "a\"b'c`d", id="quotes"),
    pytest.param("$(id);&|", "$(id);&|", id="shell"),
    pytest.param("a\\b", r"a\\b", id="backslash"),
    pytest.param("--help", "--help", id="option"),
    pytest.param("é" * 127, "é" * 127, id="254 bytes"),
    pytest.param("x" * 255, "x" * 255, id="255 bytes"),
]


@pytest.mark.rule("L13")
@pytest.mark.parametrize(("name", "shown"), HOSTILE)
def test_names_are_escaped_on_every_surface(url: str, name: str, shown: str) -> None:
    shown = shown.replace(r"\xa0", r"\u00a0")
    with Runtime(url) as runtime:
        fill(runtime, name)
        with runtime.run(name) as run:
            run.step(name, lambda: 1)
            run.effect(name, run=lambda: "m1", reconcile=lambda: None)
            run.deliver(name, name, 1)
    shop = Terminal(url)
    for words in (["runs"], ["effects"], ["uncertain"], ["show", "--", name]):
        text = shop(*words, code=CODES.get(words[0], 0)).stdout
        assert shown in text
        assert name.strip().isprintable() or name not in text
        assert all(char.isprintable() for char in text.replace("\n", ""))
    for words in (["runs"], ["effects"], ["show", "--", name], ["export"]):
        text = shop("--json", *words).stdout
        assert text.isascii()
        if words != ["export"]:
            assert (
                name in json.dumps(json.loads(text), ensure_ascii=False).encode().decode()
                or not name.isprintable()
                or "\\" in name
                or '"' in name
            )


@pytest.mark.rule("L13")
@pytest.mark.parametrize(("name", "_shown"), HOSTILE)
def test_a_command_that_is_shown_can_be_copied_into_a_shell(name: str, _shown: str) -> None:
    printed = subprocess.run(
        ["bash", "-c", f"printf %s {word(name)}"],
        capture_output=True,
        check=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert printed.stdout.decode() == name


@pytest.mark.rule("L13")
@pytest.mark.parametrize("name", ["a\0b", "a\nb", "\x1b[31m", "e\u0301", "x" * 256, "\u2028", ""])
def test_names_that_cannot_be_are_refused_in_one_line(shop: Terminal, name: str) -> None:
    with pytest.raises(UsageError):
        keys.name(name)
    result = shop("show", name, code=2)
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr


def test_escapes_tell_different_names_apart() -> None:
    names = ["a\\u202e", "a\u202e", "a ", "a\\x20", "a\\\\x20", "\\", "\\\\", "a\n"]
    assert len({escaped(name) for name in names}) == len(names)


def test_small_words() -> None:
    assert [age(seconds) for seconds in (0.2, 59.9, 61, 7_200, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]
    assert [given(text) for text in ("17", "ch_17", '"17"', "NaN", '{"id": 1}')] == [
        17,
        "ch_17",
        "17",
        "NaN",
        {"id": 1},
    ]
    assert value("x\u202e", shown=True) == r'"x\u202e"'
    assert value("x", shown=False) == "\u2039redacted 3 bytes\u203a"


# --- real processes, since what they show needs one


def run(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from counterfoil.cli import main; sys.exit(main())", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def test_a_reader_that_goes_away_is_no_error(url: str) -> None:
    with Runtime(url) as runtime, runtime.run(SHOP) as order:
        for number in range(400):
            order.step(f"{'x' * 200}{number}", lambda: 1)
    script = f"{sys.executable} -c 'import sys; from counterfoil.cli import main; sys.exit(main())' export | head -1"
    found = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        capture_output=True, text=True, check=False, env={**os.environ, "COUNTERFOIL_LEDGER": url},
    )  # fmt: skip
    assert found.returncode == 0
    assert found.stdout.startswith('{"format":"counterfoil-export"')
    assert "Traceback" not in found.stderr
    assert "BrokenPipe" not in found.stderr


def test_a_terminal_without_the_letters_gets_escapes(shop: Terminal) -> None:
    found = run("--ledger", shop.url, "effects", env={**os.environ, "PYTHONIOENCODING": "latin-1"})
    assert found.returncode == 0
    assert r"\u2039redacted 12 bytes\u203a" in found.stdout


def test_without_the_extra_the_mend_is_said() -> None:
    script = "import sys; sys.modules['click'] = None; from counterfoil.cli import main; sys.exit(main(['runs']))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "needs the extra `cli`: pip install 'counterfoil[cli]', or '.[cli]' in a clone" in found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(("no_color", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_unless_it_says_no(shop: Terminal, no_color: dict[str, str], coloured: bool) -> None:
    import pty

    env = {key: val for key, val in os.environ.items() if key not in ("NO_COLOR", "COLORTERM")}
    controller, terminal = pty.openpty()
    command = [sys.executable, "-c", "import sys; from counterfoil.cli import main; sys.exit(main())"]
    with subprocess.Popen(
        [*command, "--ledger", shop.url, "effects"],
        stdout=terminal, stderr=subprocess.DEVNULL, env={**env, "TERM": "xterm", "COLUMNS": "80", **no_color},
    ) as process:  # fmt: skip
        os.close(terminal)
        shown = b""
        try:
            while chunk := os.read(controller, 65_536):
                shown += chunk
        except OSError:
            pass
        os.close(controller)
        assert process.wait() == 0
    assert (b"\x1b[32m" in shown) is coloured
    assert b"accepted" in shown

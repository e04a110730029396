"""`verify`, `export` and `doctor`: what they find, and how they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Runtime
from counterfoil.protocol import codec, slots
from counterfoil.protocol.records import EFFECT, Entry, checksum
from tests.cli.terminal import SECRET, SHOP, Terminal


def plant(runtime: Runtime) -> None:
    """Write an outcome that has no intent, through the ledger's port."""
    slot, body = slots.outcome("ghost", 1), codec.body_of(codec.OutcomeBody())
    check = checksum(
        runtime.namespace, "bad\u202erun", slot, kind=EFFECT, phase="accepted", body=body, epoch="", append_id=1
    )
    entry = Entry(
        namespace=runtime.namespace, run="bad\u202erun", slot=slot, kind=EFFECT, phase="accepted",
        body=body, epoch="", append_id=1, at=1.0, check=check,
    )  # fmt: skip
    runtime.ledger.append(entry)


@pytest.fixture
def log(tmp_path: Path, shop: Terminal) -> Callable[..., str]:
    """Write a recipient's log: lines as they are, or (effect, item, what) of the shop's run."""
    keys = {found["effect"]: found["key"] for found in shop.json("effects")["effects"]}

    def written(*lines: Any) -> str:
        path = tmp_path / "log.jsonl"
        text = [
            each
            if isinstance(each, str)
            else json.dumps({"key": keys.get(each[0], each[0]), "item": each[1], "what": each[2]})
            for each in lines
        ]
        path.write_text("\n".join(text) + "\n", encoding="utf-8")
        return str(path)

    return written


CHARGED = ("charge", f"ch_{SECRET}", "created")


def test_a_ledger_is_verified(shop: Terminal, change: Callable[..., Any]) -> None:
    assert shop("verify").stderr == "1 run checked, 0 findings\n"
    assert shop.json("verify", SHOP) == {"runs": 1, "findings": [], "remarks": []}
    change(plant)
    (found,) = shop.json("verify", code=1)["findings"]
    assert (found["rule"], found["code"], found["name"], found["run"]) == ("E1", "no-intent", "ghost", "bad\u202erun")
    line = shop("verify", code=1).stdout
    assert line.startswith(r"E1 no-intent: run bad\u202erun ghost: ")
    assert shop("verify", SHOP).stdout == ""
    assert "there is no run 'none'" in shop("verify", "none", code=2).stderr
    assert "corrupt" in shop("effects").stdout or "ghost" not in shop("effects").stdout


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([CHARGED], []),
        ([CHARGED, ("charge", f"ch_{SECRET}", "acknowledged")], []),
        ([], ["phantom"]),
        ([CHARGED, ("charge", "ch_2", "created")], ["doubled"]),
        ([CHARGED, ("open", "o1", "acknowledged")], ["lost"]),
        ([CHARGED, ("cf-unknown", "x", "created")], ["lost"]),
        ([CHARGED, ("refused", "r1", "created")], ["rejected-but-made"]),
    ],
)
def test_the_recipients_log_is_the_judge(
    shop: Terminal, log: Callable[..., str], lines: list[Any], found: list[str]
) -> None:
    said = shop.json("verify", "--recipient-log", log(*lines), code=1 if found else 0)
    assert [each["code"] for each in said["findings"]] == found


@pytest.mark.parametrize(
    "line", ["no json", "[]", '{"key": "k"}', '{"key": 1, "item": 2}', '{"key": "k", "item": 1, "what": "?"}']
)
def test_a_log_of_another_form_is_refused(shop: Terminal, log: Callable[..., str], line: str) -> None:
    assert "line 2 of the recipient's log" in shop("verify", "--recipient-log", log(CHARGED, line), code=2).stderr


def test_an_export_has_a_header_and_every_record(shop: Terminal) -> None:
    head, *lines = map(json.loads, shop("export").stdout.splitlines())
    assert (head["format"], head["version"], head["payloads"]) == ("counterfoil-export", 1, "redacted")
    assert {line["run"] for line in lines} == {"ledger", SHOP}
    assert len(lines) == 1 + len(shop.json("show", SHOP)["records"])
    birth = next(line for line in lines if line["phase"] == "birth")
    assert birth["body"]["key"] == "\u2039redacted 66 bytes\u203a"


@pytest.mark.parametrize("shown", [[], ["--show-payloads"]])
def test_an_export_can_be_verified(
    shop: Terminal, tmp_path: Path, change: Callable[..., Any], shown: list[str]
) -> None:
    path = str(tmp_path / "export.jsonl")
    assert shop("export", "--output", path, *shown).stdout == ""
    assert shop.json("verify", "--export", path) == {"runs": 1, "findings": [], "remarks": []}
    assert shop.json("verify", SHOP, "--export", path) == {"runs": 1, "findings": [], "remarks": []}
    change(plant)
    shop("export", "--output", path, *shown)
    assert [each["code"] for each in shop.json("verify", "--export", path, code=1)["findings"]] == ["no-intent"]
    Path(path).write_text("{}\n", encoding="utf-8")
    assert "not an export" in shop("verify", "--export", path, code=2).stderr
    Path(path).write_text("what\n", encoding="utf-8")
    assert "not an export" in shop("verify", "--export", path, code=2).stderr


@pytest.mark.rule("N3")
def test_the_doctor_says_what_is_well(shop: Terminal) -> None:
    found = {each["subject"]: each for each in shop.json("doctor")["findings"]}
    assert {"synchronous", "owners", "fingerprint-key", "clock", "uncertain"} <= set(found)
    assert found["uncertain"]["level"] == "warning"
    assert found["uncertain"]["mend"]
    assert all(each["level"] in ("ok", "warning", "error") for each in found.values())
    assert all(bool(each["mend"]) is (each["level"] != "ok") for each in found.values())
    assert "fingerprint-key" in shop("doctor").stdout


@pytest.mark.rule("N3")
def test_the_doctor_finds_a_clock_that_is_wrong(url: str) -> None:
    import time

    with Runtime(url, clock=lambda: time.time() + 7_200) as runtime, runtime.run("r") as run:
        run.step("s", lambda: 1)
    (found,) = [each for each in Terminal(url).json("doctor")["findings"] if each["subject"] == "clock"]
    assert found["level"] == "warning"
    assert "in the future" in found["found"]


@pytest.mark.rule("N3", "L15")
def test_the_doctor_misses_the_key(shop: Terminal, url: str) -> None:
    import sqlite3

    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE counterfoil_record SET body = ? WHERE slot = 'birth'", (b"{",))
    connection.close()
    (found,) = shop.json("doctor", code=1)["findings"]
    assert (found["level"], found["subject"]) == ("error", "fingerprint-key")
    assert "damaged" in found["found"]
    assert "restore the ledger from a backup" in found["mend"]


@pytest.mark.rule("N3", "L4")
def test_a_damaged_record_is_found_with_its_mend(shop: Terminal, url: str) -> None:
    import sqlite3

    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE counterfoil_record SET body = ? WHERE slot = 'effect/charge/1/outcome'", (b"{",))
    connection.close()
    (found,) = [each for each in shop.json("doctor", code=1)["findings"] if each["level"] == "error"]
    assert (found["subject"], found["found"]) == (
        "records",
        f"run {SHOP!r}, slot 'effect/charge/1/outcome': the record is damaged",
    )
    assert "restore a backup" in found["mend"]
    assert "restore a backup" in shop("verify", code=1).stdout
    assert f"verify {SHOP}` says which" in shop("show", SHOP).stdout


def test_an_item_of_another_name_is_said_and_shown_where_that_is_asked_for(
    shop: Terminal, log: Callable[..., str]
) -> None:
    words = ["verify", "--recipient-log", log(("charge", "m0", "created"))]
    said = shop(*words, code=1).stdout
    assert "the recipient has \u2039redacted 4 bytes\u203a under this key, on record is \u2039redacted" in said
    shown = shop(*words, "--show-payloads", code=1).stdout
    assert f'the recipient has "m0" under this key, on record is "ch_{SECRET}"' in shown


@pytest.mark.parametrize("path", ["none/export.jsonl", "."])
def test_an_export_that_cannot_be_written_is_a_sentence(shop: Terminal, tmp_path: Path, path: str) -> None:
    result = shop("export", "--output", str(tmp_path / path), code=2)
    assert "Traceback" not in result.stderr
    assert path != "." or "directory" in result.stderr
    assert path == "." or f"cannot write {tmp_path / path}: No such file or directory" in result.stderr

"""`counterfoil blobs`: what it writes, and its exit codes."""

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Blobs
from counterfoil.cli import main
from tests.blobs.endpoints import Endpoint
from tests.blobs.s3_support import SECRET, bucket
from tests.blobs.support import MIB, data_of, some_bytes

HELLO = "sha256:5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COUNTERFOIL_BLOBS", "store")
    (tmp_path / "hello.txt").write_bytes(b"hello\n")
    return tmp_path / "store"


def ran(capfdbinary: Any, *args: str) -> tuple[int, bytes, bytes]:
    code = main(["blobs", *args])
    said = capfdbinary.readouterr()
    return code, said.out, said.err


def test_a_blob_is_put_listed_read_and_checked(root: Path, capfdbinary: Any) -> None:
    assert ran(capfdbinary, "put", "hello.txt", "--media-type", "text/plain")[:2] == (
        0,
        f"{HELLO} 6 text/plain\n".encode(),
    )
    assert ran(capfdbinary, "get", HELLO[:12])[:2] == (0, b"hello\n")
    assert ran(capfdbinary, "get", HELLO, "--start", "1", "--length", "3")[:2] == (0, b"ell")
    code, out, _ = ran(capfdbinary, "ls", "--json")
    assert code == 0
    assert json.loads(out) == {"blobs": [{"digest": HELLO, "size": 6, "media_type": "text/plain"}]}
    assert ran(capfdbinary, "check")[0] == 0
    assert ran(capfdbinary, "clean")[:2] == (0, b"removed 0 (0 bytes), 0 in flight, 0 left\n")


@pytest.mark.rule("K6")
def test_a_damaged_blob_is_found_among_the_others_and_no_file_appears(root: Path, capfdbinary: Any) -> None:
    blobs = Blobs(root.as_uri())
    references = []
    for seed in range(3):
        operation = blobs.put(some_bytes(2 * MIB, seed=seed))
        operation.run(None)
        references.append(operation.reference)
    first, second, third = sorted(references, key=lambda each: str(each["digest"]))
    data_of(root, first).write_bytes(some_bytes(MIB) + b"x" * MIB)
    (data_of(root, second).parent / "record").unlink()
    code, out, err = ran(capfdbinary, "check")
    assert code == 1
    assert out.decode().splitlines() == [f"wrong-digest  {first['digest']}", f"bad-record  {second['digest']}"]
    assert err == b"3 checked, 2 damaged\n"
    assert ran(capfdbinary, "get", first["digest"], "-o", "out")[0] == 1
    assert sorted(path.name for path in root.parent.iterdir()) == ["hello.txt", "store"]
    assert ran(capfdbinary, "get", third["digest"], "-o", "out")[0] == 0
    assert (root.parent / "out").stat().st_size == 2 * MIB
    assert ran(capfdbinary, "get", third["digest"], "-o", "out")[0] == 2


@pytest.mark.rule("K3")
def test_doctor_says_what_a_bucket_was_found_to_do(
    ministack: Endpoint, tmp_path: Path, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = bucket(ministack, tmp_path / "made")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ministack.access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("COUNTERFOIL_BLOBS_JOURNAL", str(tmp_path / "journal"))
    code, out, _ = ran(capfdbinary, "doctor", "--store", there.url, "--json")
    assert code == 0
    assert json.loads(out) == {"capabilities": {"kind": "bucket", **asdict(ministack.known)}}
    code, out, _ = ran(capfdbinary, "doctor", "--store", there.url)
    assert (code, out.decode().splitlines()[:3]) == (0, ["kind: bucket", "create: atomic", "complete: atomic"])


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no terminals here")
def test_on_a_terminal_a_bar_says_how_far_it_is(root: Path) -> None:
    (root.parent / "large").write_bytes(some_bytes(4 * MIB))
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [sys.executable, "-m", "counterfoil", "blobs", "put", "large"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        # A terminal that nobody reads is full at some time.
        with suppress(OSError):
            while data := os.read(ours, 65536):
                shown += data
        os.close(ours)
        said, _ = process.communicate()
    assert process.returncode == 0
    assert said.startswith(b"sha256:")
    # Cut of its colours and moves.
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode()
    assert "put" in text
    assert "4.2/4.2 MB" in text


@pytest.mark.rule("K5")
def test_leftovers_are_cleaned_up_within_bounds(root: Path, capfdbinary: Any) -> None:
    (root / "writing" / "a").mkdir(parents=True)
    (root / "writing" / "b").mkdir()
    (root / "writing" / "b" / "data").write_bytes(b"123")
    assert ran(capfdbinary, "clean", "--limit", "1")[:2] == (1, b"removed 1 (0 bytes), 0 in flight, 1 left\n")
    code, out, _ = ran(capfdbinary, "clean", "--json")
    expected = {"removed": 1, "bytes_removed": 3, "in_flight": 0, "left": 0, "busy": False}
    assert (code, json.loads(out)) == (0, expected)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["get", "sha256:77"], "no blob's digest begins"),
        (["ls", "--store", "s3://bucket"], "journal"),
        (["put", "hello.txt", "--media-type", "x"], "media_type"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(root: Path, capfdbinary: Any, args: list[str], says: str) -> None:
    root.mkdir()
    code, out, err = ran(capfdbinary, *args)
    assert (code, out) == (2, b"")
    assert says in err.decode()


def test_a_store_must_be_named(root: Path, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COUNTERFOIL_BLOBS")
    code, _, err = ran(capfdbinary, "ls")
    assert code == 2
    assert b"COUNTERFOIL_BLOBS" in err


@pytest.mark.parametrize("words", [["ls"], ["check"], ["clean"], ["doctor"], ["get", "00"]])
def test_a_store_that_is_not_there_is_no_empty_one(root: Path, capfdbinary: Any, words: list[str]) -> None:
    code, out, err = ran(capfdbinary, *words)
    assert (code, out) == (2, b"")
    assert f"there is no store at {root}".encode() in err
    assert not root.exists()


def test_a_file_is_no_store(root: Path, capfdbinary: Any) -> None:
    for words in (["put", "hello.txt"], ["ls"]):
        code, _, err = ran(capfdbinary, *words, "--store", "hello.txt")
        assert code == 2
        assert b"hello.txt is no folder" in err


def test_an_output_that_cannot_be_written_is_said_in_a_line(root: Path, capfdbinary: Any) -> None:
    assert ran(capfdbinary, "put", "hello.txt")[0] == 0
    code, out, err = ran(capfdbinary, "get", HELLO, "--output", "no-such/folder")
    assert (code, out) == (2, b"")
    assert b"cannot write no-such/folder: No such file or directory" in err

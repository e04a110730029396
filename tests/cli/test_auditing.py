"""`counterfoil audit-client`: what it counts, what it prints, and how it ends."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from click.testing import Result

from counterfoil.testing.audit import audit
from counterfoil.testing.peers import SCRIPTS
from counterfoil.testing.peers.catalogue import CASES, HTTP2_CASES, chosen
from tests.cli.terminal import Terminal
from tests.support import GROWING_S, tries

CLIENTS = """
import asyncio
import http.client
from urllib.parse import urlsplit

BODY = b'{"cents": 700}'


def once(url, method="PUT", timeout=60):
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc, timeout=timeout)
    try:
        connection.request(method, place.path, BODY, {"Idempotency-Key": "k"})
        with connection.getresponse() as answer:
            return answer.read()
    finally:
        connection.close()


def hasty(url):
    return once(url, timeout=1)


def eager(url, method="PUT"):
    for _ in range(3):
        try:
            return once(url, method)
        except OSError:
            pass
    raise RuntimeError("gave up")


async def awaited(url):
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(b"DELETE / HTTP/1.1\\r\\n\\r\\n")
    await reader.read(1000)
    writer.close()
    await writer.wait_closed()


def nothing():
    raise RuntimeError
"""


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "clients", raising=False)
    (tmp_path / "clients.py").write_text(CLIENTS, encoding="utf-8")
    return tmp_path


def run(folder: Path, *words: str, code: int = 0) -> Result:
    done = Terminal("")("audit-client", *words, code=code, ledger=False)
    sys.modules.pop("clients", None)
    return done


def found(folder: Path, *words: str, code: int = 0) -> dict[str, Any]:
    report = json.loads(run(folder, *words, "--json", code=code).stdout)
    assert report["ok"] is (code == 0)
    return {each["case"]: each for each in report["findings"]}


def test_a_client_that_sends_once_passes_every_case(clients: Path) -> None:
    findings = found(clients, "clients:hasty", "--at-once", "20", "--limit", "2")
    assert set(findings) == {case.name for case in CASES}
    # How each of them ends for a client that is not in a hurry.
    cases = [word for name in ("refuse", "read-and-drop", "plain", "503") for word in ("--case", name)]
    findings = found(clients, "clients:once", *cases)
    assert findings["refuse"] | {"took_s": 0, "says": ""} == {
        "case": "refuse", "says": "", "known": "not sent", "ended": "raised", "raised": "ConnectionRefusedError",
        "sent": 0, "requests": 0, "connections": 0, "keys": 0, "took_s": 0, "problem": None,
    }  # fmt: skip
    drop = findings["read-and-drop"]
    assert (drop["raised"], drop["sent"], drop["keys"]) == ("http.client.RemoteDisconnected", 1, 1)
    assert findings["plain"]["ended"] == findings["503"]["ended"] == "returned"
    hung = found(clients, "clients:hasty", "--case", "hang", "--limit", "60")["hang"]
    assert (hung["ended"], hung["raised"]) == ("raised", "TimeoutError")


def test_a_client_that_sends_again_is_found_out(clients: Path) -> None:
    findings = found(clients, "clients.py:eager", "--case", "read-and-drop", "--case", "503", code=1)
    assert {name: each["sent"] for name, each in findings.items()} == {"read-and-drop": 3, "503": 1}
    assert findings["read-and-drop"]["raised"] == "RuntimeError"
    done = run(clients, "clients:eager", "--case", "read-and-drop", code=1)
    assert "reads the request, acts, and hangs up" in done.stdout
    assert done.stderr == "cases: 1; sent more than once: 1; could not be tried: 0\n"


def test_reads_may_be_sent_as_often_as_a_client_likes(clients: Path) -> None:
    (read,) = found(clients, "clients:eager", "--method", "GET", "--case", "read-and-drop").values()
    assert (read["sent"], read["requests"]) == (0, 3)


def test_an_asynchronous_client_sends_once_too(clients: Path) -> None:
    assert found(clients, "clients:awaited", "--case", "read-and-drop")["read-and-drop"]["sent"] == 1


def test_a_client_that_sends_late_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def put(url: str) -> None:
        # Whoever comes too late finds nobody.
        with suppress(OSError):
            urlopen(Request(url, method="PUT")).close()

    def late(url: str) -> None:
        for _ in range(2):
            threading.Thread(target=put, args=[url], daemon=True).start()

    for watched_s in tries(lambda: sent[-1] == 2, GROWING_S[1:]):
        monkeypatch.setattr("counterfoil.testing.audit.WATCHED_S", watched_s)
        (each,) = audit(late, cases=chosen(["plain"])).findings
        sent.append(each.sent)


def test_a_client_that_waits_too_long_and_a_case_that_it_cannot_meet(clients: Path) -> None:
    waiting: list[dict[str, Any]] = []
    # The limit may come before anything is sent.
    for limit_s in tries(lambda: waiting[-1]["sent"], GROWING_S):
        seen = found(clients, "clients:once", "--case", "hang", "--limit", str(limit_s))
        waiting.append(seen["hang"])
    assert (waiting[-1]["ended"], waiting[-1]["raised"], waiting[-1]["sent"]) == ("waiting", None, 1)
    done = run(clients, "clients:once", "--case", "goaway-below", code=1)
    assert "GoAway is a move of HTTP/2, and the client speaks HTTP/1.1" in done.stdout


def test_what_is_wrong_with_the_command_is_said(clients: Path) -> None:
    assert "there is no case 'no' (there are plain, ref" in run(clients, "clients:once", "--case", "no", code=2).stderr
    assert "has no function 'none'" in run(clients, "clients:none", code=2).stderr
    assert "for example shop.clients:order" in run(clients, "clients", code=2).stderr
    # It would send nothing, and that would look well.
    assert "cannot be called with a URL" in run(clients, "clients:nothing", code=2).stderr
    assert "client(url, method=…)" in run(clients, "clients:awaited", "--method", "POST", code=2).stderr


def test_the_catalogue_names_every_case_once() -> None:
    assert list(SCRIPTS) == [case.name for case in chosen(http2=True)]
    assert len(SCRIPTS) == len(CASES) + len(HTTP2_CASES)


def test_a_client_is_audited_without_the_command_line() -> None:
    def client(url: str) -> None:
        raise ZeroDivisionError

    (each,) = audit(client, cases=chosen(["plain"])).findings
    assert (each.raised, each.sent, each.connections) == ("ZeroDivisionError", 0, 0)

"""Every cause in every phase of requests and events: what is told, seen by the peer, given back, recorded, settled.

Blobs have more phases than one exchange, and tests of their own in `tests/blobs/test_matrix.py`. The table of all three
in the docs is made of what is expected here and there.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from counterfoil import HTTP, Runtime
from counterfoil.recipients.events import connection as connections
from tests.adversarial import events, http
from tests.adversarial.cells import CAUSES, KILL, Cell
from tests.adversarial.played import Seen
from tests.events import support
from tests.events.support import Stream, through
from tests.servers.nats import NatsCluster
from tests.servers.proxy import Proxy
from tests.support import Colour, in_thread


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return Colour(request.param)


@pytest.fixture
async def stream(nats: NatsCluster) -> Stream:
    return await Stream.make(nats.url)


def check(seen: Seen, expected: Cell) -> None:
    """Compare what followed with what must."""
    assert (type(seen.outcome).__name__, seen.outcome.evidence.kind) in expected.told
    assert seen.peer in expected.peer
    assert seen.journal == expected.journal
    assert seen.permits == 0
    assert seen.next_accepted


HTTP_CELLS = [(phase, cause) for phase in http.PHASES for cause in CAUSES if http.expected(phase, cause) is not None]


@pytest.mark.rule("H1", "O2", "B2", "B4", "B5", "B6", "B8", "B10")
@pytest.mark.parametrize(("phase", "cause"), HTTP_CELLS)
async def test_each_cause_in_each_phase_of_a_request(phase, cause, colour):
    expected = http.expected(phase, cause)
    assert expected is not None
    check(await http.play(phase, cause, colour=colour), expected)


@pytest.mark.rule("V2", "V3", "B2", "B4", "B5", "B6", "B8", "B10")
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("phase", events.PHASES)
async def test_each_cause_in_each_phase_of_an_event(phase, cause, colour, stream, nats_proxy: Proxy, monkeypatch):
    monkeypatch.setattr(connections, "RETIRE_S", 0.1)
    with support.events(stream, through(nats_proxy.port)) as recipient:
        seen = await events.play(phase, cause, colour=colour, stream=stream, events=recipient, proxy=nats_proxy)
    check(seen, events.expected(phase, cause))


# --- killed


CHILD = textwrap.dedent("""
    import sys, time
    from counterfoil import HTTP, Events, Runtime
    def resolve(host, port):
        print("resolving", flush=True)
        time.sleep(60)
    ledger, kind, url, *more = sys.argv[1:]
    if kind == "http":
        resolving = {"resolve": resolve} if "payments.test" in url else {}
        recipient = HTTP("payments", base_url=url, allow_addresses=("127.0.0.1/32",), **resolving)
        operation = recipient.post("/charges", json={"cents": 700})
    else:
        operation = Events(url, stream=more[0]).publish(more[1], b"ours")
    with Runtime(ledger) as runtime, runtime.run("order-42") as run:
        run.effect("ours", operation)
""")


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE)


def kill(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate()


async def settled(ledger: str, operation: Any) -> tuple[str, str]:
    """Say what the ledger had of the effect, and what another life makes of it, twice the same."""

    def settle() -> tuple[str, str]:
        with Runtime(ledger) as runtime, runtime.run("order-42") as run:
            (view,) = runtime.effects()
            found = run.effect("ours", operation)
            assert run.effect("ours", operation) == found
            return view.state, type(found).__name__

    first: tuple[str, str] = await in_thread(settle)
    return first


@pytest.mark.rule("E2", "E8", "H1")
@pytest.mark.parametrize("phase", http.PHASES)
async def test_what_a_killed_process_leaves_of_a_request_is_not_sent_again(phase, tmp_path):
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    expected = http.expected(phase, KILL)
    assert expected is not None
    with http.held(phase) as at:
        child = start(ledger, "http", at.url)
        try:
            if phase == "resolving":
                assert child.stdout is not None
                assert await in_thread(child.stdout.readline) == b"resolving\n"
            else:
                await at.reached()
        finally:
            kill(child)
        at.let_go()
        again = HTTP("payments", base_url=at.url, allow_addresses=("127.0.0.1/32",))
        state, outcome = await settled(ledger, again.post("/charges", json={"cents": 700}))
        assert state == expected.journal
        assert outcome in expected.restart
        assert http.charges(at.peer) in expected.peer


@pytest.mark.rule("V2", "V4", "E2", "E8")
@pytest.mark.parametrize("phase", events.PHASES)
async def test_what_a_killed_process_leaves_of_an_event_is_settled_by_the_stream(
    phase, stream, nats_proxy: Proxy, tmp_path
):
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    rule = events.hold(nats_proxy, phase)
    child = start(ledger, "events", through(nats_proxy.port), stream.name, stream.subject())
    try:
        await events.reached(rule, phase, stream)
    finally:
        kill(child)
    events.let_go(nats_proxy)
    expected = events.expected(phase, KILL)
    with support.events(stream) as recipient:
        state, outcome = await settled(ledger, recipient.publish(stream.subject(), b"ours"))
    assert state == expected.journal
    assert outcome in expected.restart
    assert len(await stream.messages()) in expected.peer

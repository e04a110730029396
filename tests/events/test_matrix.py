"""Every cause in every phase: what the caller is told, what the stream has, what is given back, what a restart does."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from counterfoil import Runtime
from counterfoil.recipients.events import connection as connections
from tests.events import matrix
from tests.events.support import through
from tests.servers.proxy import Proxy
from tests.support import in_thread


@pytest.mark.rule("V2", "V3", "B2", "B4", "B5", "B6", "B10")
@pytest.mark.parametrize("cause", matrix.CAUSES)
@pytest.mark.parametrize("phase", matrix.PHASES)
async def test_each_cause_in_each_phase(phase, cause, colour, stream, nats_proxy: Proxy, make, monkeypatch):
    monkeypatch.setattr(connections, "RETIRE_S", 0.1)
    events = make(stream, through(nats_proxy.port))
    seen = await matrix.play(phase, cause, colour=colour, stream=stream, events=events, proxy=nats_proxy)
    expected = matrix.expected(phase, cause)
    assert type(seen.outcome).__name__ == expected.outcome
    assert seen.outcome.evidence.kind in expected.kinds
    assert seen.stored in expected.stored
    assert seen.owned_after == 0
    assert seen.next_accepted


CHILD = textwrap.dedent("""
    import sys
    from counterfoil import Events, Runtime
    ledger, url, stream, subject = sys.argv[1:]
    with Runtime(ledger) as runtime, runtime.run("order-42") as run:
        run.effect("placed", Events(url, stream=stream).publish(subject, b"ours"))
""")


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, *arguments])


@pytest.mark.rule("V2", "V4", "E2", "E8")
@pytest.mark.parametrize("phase", matrix.PHASES)
async def test_what_a_killed_process_leaves_is_settled_by_the_stream(phase, stream, nats_proxy: Proxy, make, tmp_path):
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    rule = matrix.hold(nats_proxy, phase)
    arguments = [ledger, through(nats_proxy.port), stream.name, stream.subject()]
    child = start(*arguments)
    try:
        await matrix.reached(rule, phase, stream)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    matrix.let_go(nats_proxy)
    event = make(stream).publish(stream.subject(), b"ours")

    def settle():
        with Runtime(ledger) as runtime, runtime.run("order-42") as run:
            first = run.effect("placed", event)
            assert run.effect("placed", event) == first
            return first

    outcome = await in_thread(settle)
    expected = matrix.expected(phase, "kill")
    assert type(outcome).__name__ in expected.restart
    assert len(await stream.messages()) in expected.stored

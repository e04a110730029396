"""Every cause in every phase of a put: what callers are told, what can be seen, what a restart makes of it.

A put is held in its phase: `writing` its bytes, `sealing` (all is written, and nothing can be seen yet), `renamed` (it
can be seen, and its name is not known to be durable yet).
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Accepted, AsyncBroker, Blobs, Broker, Grant, Runtime
from counterfoil.recipients.blobs.folder import Folder
from counterfoil.recipients.blobs.staged import Staged
from tests.blobs.support import on_their_way
from tests.support import Colour, Gate, eventually, in_thread

GRANT = Grant("blobs", operations=("put",))
PHASES: dict[str, tuple[type, str]] = {
    "writing": (Staged, "write"),
    "sealing": (Staged, "_write_record"),
    "renamed": (Folder, "sync"),
}
KINDS = {
    "cancel": ("cancelled", "cancelled"),
    "deadline": ("deadline-before-dispatch", "deadline"),
    "revocation": ("revoked", "revoked"),
    "shutdown": ("shutdown", "shutdown"),
}


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return Colour(request.param)


@pytest.fixture(autouse=True)
def nobody_is_held_for_ever() -> Iterator[None]:
    yield
    Gate.open_all()


def held(monkeypatch: pytest.MonkeyPatch, phase: str) -> Gate:
    """Hold the next put in a phase."""
    gate, (home, name) = Gate(), PHASES[phase]
    whole: Callable[..., Any] = getattr(home, name)

    def stopped(*args: Any) -> Any:
        if not gate.reached.is_set():
            gate.stop()
        return whole(*args)

    monkeypatch.setattr(home, name, stopped)
    return gate


@pytest.mark.rule("K1", "K2", "B2", "B5", "B6", "B10")
@pytest.mark.parametrize("cause", KINDS)
@pytest.mark.parametrize("phase", PHASES)
async def test_each_cause_in_each_phase(
    phase: str, cause: str, colour: Colour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "blobs"
    blobs = Blobs(root.as_uri())
    gate = held(monkeypatch, phase)
    broker: Any = Broker() if colour.blocking else AsyncBroker()
    activation = broker.activation(grants=[GRANT])

    async def perform(operation: Any, **options: Any) -> Any:
        if colour.blocking:
            return await in_thread(lambda: activation.perform(operation, **options))
        return await activation.perform(operation, **options)

    async def close() -> None:
        if colour.blocking:
            await in_thread(lambda: broker.close(timeout_s=0.05))
        else:
            await broker.close(timeout_s=0.05)

    if colour.blocking:
        activation.__enter__()
    else:
        await activation.__aenter__()
    call = asyncio.ensure_future(perform(blobs.put(b"ours"), timeout_s=0.4 if cause == "deadline" else 20))
    await eventually(gate.reached.is_set)
    if cause == "cancel":
        activation.cancel()
    elif cause == "revocation":
        activation.revoke()
    elif cause == "shutdown":
        await close()
    outcome = await asyncio.wait_for(call, 10)
    # Nobody waits any more, and the work is still there: so is its permit.
    assert broker.report().permits == 1
    gate.open()
    await eventually(lambda: broker.report().idle)
    await close()
    before = phase != "renamed"
    assert type(outcome).__name__ == ("Rejected" if before else "Uncertain")
    assert outcome.evidence.kind == KINDS[cause][0 if before else 1]
    assert len(list(blobs.references())) == (0 if before else 1)
    assert on_their_way(root) == []
    blobs.put(b"ours").run(None)
    assert blobs.reader(blobs.put(b"ours").reference).read() == b"ours"


@pytest.mark.rule("K2", "K5", "E2")
@pytest.mark.parametrize("phase", PHASES)
def test_what_a_killed_process_leaves_is_settled_by_the_folder(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, url = tmp_path / "blobs", f"sqlite:///{tmp_path / 'ledger.db'}"
    blobs = Blobs(root.as_uri())

    def store() -> Any:
        with Runtime(url) as runtime, runtime.run("order-42") as run:
            return run.effect("invoice", blobs.put(b"ours"))

    child = os.fork()
    if child == 0:
        home, name = PHASES[phase]
        monkeypatch.setattr(home, name, lambda *_args: os.kill(os.getpid(), signal.SIGKILL))
        try:
            store()
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    outcome = store()
    assert type(outcome).__name__ == ("Accepted" if phase == "renamed" else "Uncertain")
    assert store() == outcome
    assert len(list(blobs.references())) == isinstance(outcome, Accepted)
    assert blobs.clean().removed == (0 if phase == "renamed" else 1)
    assert on_their_way(root) == []

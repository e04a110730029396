"""Every cause in every phase of a put: what callers are told, what can be seen, what a restart makes of it.

Into a folder, a put is held in its phase: `writing` its bytes, `sealing` (all is written, and nothing can be seen
yet), `renamed` (it can be seen, and its name is not known to be durable yet). Into a bucket, it is held by somebody
between it and the endpoint: see `matrix`.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Accepted, AsyncBroker, Blobs, Broker, Grant, Runtime
from counterfoil.recipients.blobs.folder import Folder
from counterfoil.recipients.blobs.s3.journal import Journal
from counterfoil.recipients.blobs.staged import Staged
from tests.blobs import matrix
from tests.blobs.endpoints import Endpoint
from tests.blobs.s3_support import Meddler, bucket
from tests.blobs.support import on_their_way
from tests.support import PATIENCE_S, Colour, Gate, eventually, in_thread, tries

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
    monkeypatch.undo()
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
    held_in: list[Path] = []
    for timeout_s in tries(lambda: held_in, matrix.deadlines(cause)):
        root = tmp_path / str(timeout_s)
        if await meets(cause, held(monkeypatch, phase), root=root, colour=colour, timeout_s=timeout_s):
            held_in.append(root)
    root, before = held_in[0], phase != "renamed"
    blobs = Blobs(root.as_uri())
    assert len(list(blobs.references())) == (0 if before else 1)
    assert on_their_way(root) == []
    blobs.put(b"ours").run(None)
    assert blobs.reader(blobs.put(b"ours").reference).read() == b"ours"


async def meets(cause: str, gate: Gate, *, root: Path, colour: Colour, timeout_s: float) -> bool:
    """Make a cause meet a put that is held; False if its deadline came before that."""
    blobs = Blobs(root.as_uri())
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
    call = asyncio.ensure_future(perform(blobs.put(b"ours"), timeout_s=timeout_s))
    early = not await matrix.reached(gate, call)
    if cause == "cancel":
        activation.cancel()
    elif cause == "revocation":
        activation.revoke()
    elif cause == "shutdown":
        await close()
    outcome = await asyncio.wait_for(call, PATIENCE_S)
    # Nobody waits any more, and the work is still there: so is its permit.
    assert early or broker.report().permits == 1
    gate.open()
    await eventually(lambda: broker.report().idle)
    await close()
    if early:
        return False
    before = not list(blobs.references())
    assert type(outcome).__name__ == ("Rejected" if before else "Uncertain")
    assert outcome.evidence.kind == KINDS[cause][0 if before else 1]
    return True


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


# --- into a bucket


def behind(meddler: Meddler, tmp_path: Path, **options: Any) -> Blobs:
    """A bucket with somebody in between."""
    blobs = bucket(meddler.endpoint, tmp_path / "journal", settle_s=0.0, **options)
    blobs.store.part_bytes = matrix.PART  # type: ignore[attr-defined]
    return blobs


@pytest.mark.rule("K3", "K4", "K5", "B2", "B4", "B5", "B6", "B10")
@pytest.mark.parametrize("cause", matrix.CAUSES)
@pytest.mark.parametrize("phase", matrix.PHASES)
async def test_each_cause_in_each_phase_of_a_put_to_a_bucket(
    phase: str, cause: str, colour: Colour, ministack: Endpoint, tmp_path: Path
) -> None:
    shown: list[matrix.Seen] = []
    for timeout_s in tries(lambda: shown, matrix.deadlines(cause)):
        with Meddler(ministack) as meddler:
            folder = tmp_path / str(timeout_s)
            blobs = await in_thread(partial(behind, meddler, folder))
            seen = await matrix.play(
                phase, cause, colour=colour, blobs=blobs, meddler=meddler, journal=folder / "journal",
                timeout_s=timeout_s,
            )  # fmt: skip
            if seen is not None:
                shown.append(seen)
                await as_expected(matrix.expected(phase, cause), phase, seen, blobs=blobs)


async def as_expected(expected: matrix.Expected, phase: str, seen: matrix.Seen, *, blobs: Blobs) -> None:
    """Compare what followed with what must."""
    assert (type(seen.outcome).__name__, seen.outcome.evidence.kind) in expected.told
    held = Counter(matrix.PHASES[phase].seen)
    assert held <= seen.peer
    assert seen.peer["part"] <= 2
    assert seen.peer["abort"] == expected.aborts
    assert all(count == 1 for kind, count in seen.peer.items() if kind != "part")
    assert (seen.permits, seen.connections) == (0, 0)
    assert seen.journal == expected.journal
    after = await in_thread(lambda: matrix.restart(blobs))
    assert (after.visible, after.left, after.clean) == (expected.visible, expected.left, True)
    again = await in_thread(lambda: blobs.put(matrix.DATA).run(None))
    assert again.evidence.details["already"] is expected.visible
    assert blobs.check(again.proof).sound


def test_the_table_in_the_docs_is_what_is_shown_here() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "blobs.md"
    said = page.read_text("utf-8").splitlines()
    assert [row for row in matrix.table() if row not in said] == []


@pytest.mark.rule("K3", "B3")
@pytest.mark.parametrize("cause", KINDS)
async def test_what_happens_before_the_first_request_is_rejected_and_none_is_made(
    cause: str, colour: Colour, ministack: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, outcomes = Journal.begin, list[Any]()
    for timeout_s in tries(lambda: outcomes, matrix.deadlines(cause)):
        gate = Gate()

        def stopped(*args: Any, gate: Gate = gate) -> Any:
            log = begin(*args)
            gate.stop()
            return log

        with Meddler(ministack) as meddler:
            blobs = await in_thread(partial(behind, meddler, tmp_path / str(timeout_s)))
            monkeypatch.setattr(Journal, "begin", stopped)
            meddler.seen.clear()
            outcomes.extend(await before_the_first(cause, gate, blobs=blobs, colour=colour, timeout_s=timeout_s))
            monkeypatch.undo()
            assert meddler.seen == []
    (outcome,) = outcomes
    assert (type(outcome).__name__, outcome.evidence.kind) == ("Rejected", KINDS[cause][0])


async def before_the_first(cause: str, gate: Gate, *, blobs: Blobs, colour: Colour, timeout_s: float) -> list[Any]:
    """Make a cause meet a put that has made no request yet; return the outcome, none if the deadline came earlier."""
    broker: Any = Broker() if colour.blocking else AsyncBroker()
    activation = broker.activation(grants=[matrix.grant(blobs)])
    either = matrix.either
    await either(colour, activation.__enter__ if colour.blocking else activation.__aenter__)
    call = asyncio.ensure_future(either(colour, lambda: activation.perform(blobs.put(b"ours"), timeout_s=timeout_s)))
    early = not await matrix.reached(gate, call)
    if cause == "cancel":
        activation.cancel()
    elif cause == "revocation":
        activation.revoke()
    elif cause == "shutdown":
        await either(colour, lambda: broker.close(timeout_s=0.05))
    outcome = await asyncio.wait_for(call, PATIENCE_S)
    gate.open()
    await eventually(lambda: broker.report().idle)
    await either(colour, lambda: broker.close(timeout_s=PATIENCE_S))
    return [] if early else [outcome]


@pytest.mark.rule("K3", "K4", "K5", "E2")
@pytest.mark.parametrize("phase", matrix.PHASES)
def test_what_a_killed_process_leaves_is_settled_by_the_bucket(phase: str, ministack: Endpoint, tmp_path: Path) -> None:
    expected = matrix.expected(phase, "kill")
    with Meddler(ministack) as meddler:
        blobs = behind(meddler, tmp_path)

        def store() -> Any:
            with Runtime(f"sqlite:///{tmp_path / 'ledger.db'}") as runtime, runtime.run("order-42") as run:
                return run.effect("invoice", blobs.put(matrix.DATA))

        held = matrix.Held(meddler, phase)
        child = os.fork()
        if child == 0:
            try:
                store()
            finally:
                os._exit(1)
        assert held.gate.reached.wait(PATIENCE_S)
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        held.gate.open()
        meddler.before = meddler.after = None
        while meddler.under_way:
            time.sleep(0.001)
        outcome = store()
        assert type(outcome).__name__ == expected.restart
        assert store() == outcome
        after = matrix.restart(blobs)
        assert (after.visible, after.left, after.clean) == (expected.visible, expected.left, True)
        assert all(count <= 1 for kind, count in Counter(meddler.kinds()).items() if kind in ("complete", "record"))

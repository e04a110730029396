"""A put as an operation: now under a broker, once in a run, after commit from an outbox, in both colours."""

import asyncio
import os
import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from counterfoil import (
    Accepted,
    AsyncBlobs,
    AsyncBroker,
    AsyncDispatcher,
    AsyncOutbox,
    AsyncRuntime,
    BlobDamaged,
    Blobs,
    Broker,
    Budget,
    Context,
    Dispatcher,
    EffectUnresolved,
    Evidence,
    Grant,
    NameConflict,
    Outbox,
    Rejected,
    Runtime,
    Uncertain,
    UsageError,
)
from counterfoil.recipients.blobs import folder
from tests.blobs.support import MIB, data_of, on_their_way, some_bytes
from tests.support import PATIENCE_S

GRANT = Grant("blobs", operations=("put",))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def blobs(root: Path) -> Blobs:
    return Blobs(f"file://{root}")


def perform(asynchronous: bool, operation: Any, *, grants: Any = (GRANT,), **more: Any) -> Any:
    """Perform an operation in an activation of its own, in either colour; returns the outcome and what is owned."""
    if not asynchronous:
        broker = Broker()
        with broker.activation(grants=grants, **more) as activation:
            return activation.perform(operation), broker.report()

    async def performed() -> Any:
        broker = AsyncBroker()
        async with broker.activation(grants=grants, **more) as activation:
            return await activation.perform(operation), broker.report()

    return asyncio.run(performed())


asynchronous = pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "asyncio"])


# --- now


@pytest.mark.rule("K1", "B4")
@asynchronous
def test_a_put_is_performed_now_and_the_reference_is_its_proof(blobs: Blobs, asynchronous: bool) -> None:
    data = some_bytes(2 * MIB)
    told: list[int] = []
    operation = blobs.put(data, media_type="image/png", progress=lambda done, _of: told.append(done))
    outcome, report = perform(asynchronous, operation)
    assert isinstance(outcome, Accepted)
    assert outcome.proof == operation.reference
    assert blobs.reader(outcome.proof).read() == data
    assert told == [MIB, 2 * MIB]
    assert not report.calls


@pytest.mark.rule("B1", "B3")
@asynchronous
@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"grants": ()}, "refused-by-policy"),
        ({"budget": Budget(bytes_out=999)}, "budget-exhausted"),
        ({"deadline_s": 0.0}, "deadline-before-dispatch"),
    ],
)
def test_what_is_refused_leaves_nothing(
    blobs: Blobs, root: Path, asynchronous: bool, more: dict[str, Any], reason: str
) -> None:
    outcome, _ = perform(asynchronous, blobs.put(b"x" * 1000), **more)
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == reason
    assert list(blobs.references()) == []
    assert on_their_way(root) == []


@pytest.mark.rule("B2", "B5")
@asynchronous
def test_authority_that_is_taken_away_while_it_is_written_keeps_it_invisible(
    blobs: Blobs, root: Path, asynchronous: bool
) -> None:
    broker, looped = Broker(), AsyncBroker()
    halfway, revoked = threading.Event(), threading.Event()

    def progress(done: int, _of: Any) -> None:
        if done == MIB:
            halfway.set()
            assert revoked.wait(PATIENCE_S)

    operation = blobs.put(some_bytes(3 * MIB), progress=progress)
    outcomes: list[Any] = []
    if asynchronous:

        async def performed() -> None:
            async with looped.activation(grants=(GRANT,)) as activation:
                task = asyncio.ensure_future(activation.perform(operation))
                assert await asyncio.get_running_loop().run_in_executor(None, halfway.wait, PATIENCE_S)
                await activation.revoke()
                revoked.set()
                outcomes.append(await task)

        asyncio.run(performed())
    else:
        with broker.activation(grants=(GRANT,)) as activation:
            thread = threading.Thread(target=lambda: outcomes.append(activation.perform(operation)))
            thread.start()
            assert halfway.wait(PATIENCE_S)
            activation.revoke()
            revoked.set()
            thread.join()
    (outcome,) = outcomes
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == "revoked"
    assert list(blobs.references()) == []
    # The caller was told at once; the permit is held until the work has retired, and nothing is left then.
    give_up = time.monotonic() + PATIENCE_S
    while (broker.report().permits or looped.report().permits) and time.monotonic() < give_up:
        time.sleep(0.005)
    assert not broker.report().permits
    assert not looped.report().permits
    assert on_their_way(root) == []


class Closed:
    """A permit whose gate somebody else has won, after all bytes were let pass."""

    deadline = float("inf")

    def __init__(self, seen: Any) -> None:
        self.seen = seen

    def offered(self, _count: int) -> bool:
        return True

    def dispatch(self, **_facts: Any) -> None:
        assert self.seen() == []
        raise Rejected(Evidence("revoked"))


@pytest.mark.rule("B2", "K2")
def test_the_gate_is_taken_after_the_last_byte_and_before_anybody_can_see_the_blob(blobs: Blobs, root: Path) -> None:
    permit: Any = Closed(lambda: list(blobs.references()))
    outcome = blobs.put(b"all of it").perform(Context("k", 1, None), permit)
    assert outcome == Rejected(Evidence("revoked"))
    assert list(blobs.references()) == []
    assert on_their_way(root) == []


@asynchronous
def test_a_file_that_changed_since_it_was_promised_is_not_stored(
    blobs: Blobs, root: Path, tmp_path: Path, asynchronous: bool
) -> None:
    file = tmp_path / "report.pdf"
    for before, after in [(b"as promised", b"as changed!"), (b"long", b"longer"), (b"long", b"l")]:
        file.write_bytes(before)
        operation = blobs.put(file)
        file.write_bytes(after)
        outcome, _ = perform(asynchronous, operation)
        assert isinstance(outcome, Rejected)
        assert outcome.evidence.kind == "source-changed"
    operation = blobs.put(str(file))
    file.unlink()
    outcome, _ = perform(asynchronous, operation)
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == "source-unreadable"
    assert list(blobs.references()) == []
    assert on_their_way(root) == []


def test_what_cannot_be_put_is_refused_when_the_operation_is_made(blobs: Blobs, tmp_path: Path) -> None:
    for given in (5, None, ["a"]):
        with pytest.raises(UsageError, match="bytes or a path"):
            blobs.put(given)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be read"):
        blobs.put(tmp_path / "missing")
    with pytest.raises(UsageError, match="have the digest"):
        blobs.put(b"x", digest="sha256:" + "0" * 64)
    with pytest.raises(UsageError, match="media_type"):
        blobs.put(b"x", media_type="nonsense")


# --- once


def once(asynchronous: bool, url: str, operation: Any, name: str = "store") -> Any:
    if not asynchronous:
        with Runtime(url) as runtime, runtime.run("order-1") as run:
            return run.effect(name, operation)

    async def called() -> Any:
        async with AsyncRuntime(url) as runtime, runtime.run("order-1") as run:
            return await run.effect(name, operation)

    return asyncio.run(called())


@pytest.mark.rule("E1", "K1")
@asynchronous
def test_a_put_is_an_effect_of_a_run(blobs: Blobs, root: Path, tmp_path: Path, asynchronous: bool) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    outcome = once(asynchronous, url, blobs.put(b"once"))
    assert isinstance(outcome, Accepted)
    assert outcome.via == "run"
    data_of(root, outcome.proof).unlink()
    assert once(asynchronous, url, blobs.put(b"once")) == outcome
    with pytest.raises(NameConflict):
        once(asynchronous, url, blobs.put(b"other"))


@pytest.mark.rule("E2", "K2")
@asynchronous
@pytest.mark.parametrize("point", ["before the rename", "after the rename"])
def test_after_a_kill_the_folder_is_asked(
    blobs: Blobs, root: Path, tmp_path: Path, asynchronous: bool, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    child = os.fork()
    if child == 0:

        def die(*_args: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        if point == "before the rename":
            monkeypatch.setattr(Path, "rename", die)
        else:
            monkeypatch.setattr(folder.Folder, "sync", die)
        try:
            once(False, url, blobs.put(b"once"))
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    outcome = once(asynchronous, url, blobs.put(b"once"))
    if point == "after the rename":
        assert isinstance(outcome, Accepted)
        assert outcome.via == "reconcile"
        assert blobs.reader(outcome.proof).read() == b"once"
        assert blobs.clean().removed == 0
    else:
        # Not there proves nothing, in a folder as anywhere: a person decides, or it is put under a new name.
        assert isinstance(outcome, Uncertain)
        assert list(blobs.references()) == []
        assert blobs.clean().removed == 1
        assert isinstance(once(asynchronous, url, blobs.put(b"once"), name="store again"), Accepted)


@pytest.mark.rule("E4", "K6")
def test_a_look_up_that_finds_something_else_settles_nothing(blobs: Blobs, root: Path, tmp_path: Path) -> None:
    operation = blobs.put(b"good")
    operation.run(None)
    data_of(root, operation.reference).write_bytes(b"baad")
    with pytest.raises(BlobDamaged):
        operation.reconcile(None)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Runtime(url) as runtime, runtime.run("r") as run:

        def lost(_context: Any) -> Any:
            raise ConnectionError

        with pytest.raises(EffectUnresolved):
            run.effect("a", run=lost, reconcile=operation.reconcile)
        with pytest.raises(EffectUnresolved) as caught:
            run.effect("a", run=lost, reconcile=operation.reconcile)
    assert caught.value.reason == "reconcile-failed"


# --- after commit


@pytest.mark.rule("X3", "K1")
@asynchronous
def test_a_put_that_was_staged_is_stored_after_the_commit(blobs: Blobs, tmp_path: Path, asynchronous: bool) -> None:
    path = tmp_path / "app.db"
    url = f"sqlite:///{path}?engine=sqlite3"
    file = tmp_path / "invoice.pdf"
    file.write_bytes(b"from a file")

    def stage(outbox: Any) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        outbox.stage(connection, blobs.put(b"from memory", media_type="text/plain"), key="memory")
        outbox.stage(connection, blobs.put(file), key="file")
        connection.execute("COMMIT")
        connection.close()

    receipts: dict[str, Any] = {}
    if asynchronous:

        async def delivered() -> None:
            async with AsyncRuntime(url) as runtime:
                outbox = AsyncOutbox(runtime)
                await outbox.migrate()
                with Runtime(url) as blocking:
                    stage(Outbox(blocking))
                async with AsyncDispatcher(runtime, [blobs]) as dispatcher:
                    await dispatcher.run_until_idle(timeout_s=PATIENCE_S)
                for key in ("memory", "file"):
                    receipts[key] = await outbox.receipt(key)

        asyncio.run(delivered())
    else:
        with Runtime(url) as runtime:
            outbox = Outbox(runtime)
            outbox.migrate()
            stage(outbox)
            with Dispatcher(runtime, [blobs]) as dispatcher:
                dispatcher.run_until_idle(timeout_s=PATIENCE_S)
            for key in ("memory", "file"):
                receipts[key] = outbox.receipt(key)
    for key, data in (("memory", b"from memory"), ("file", b"from a file")):
        assert receipts[key].state == "accepted", receipts[key]
        assert blobs.reader(receipts[key].outcome.proof).read() == data


def test_an_operation_comes_back_from_what_an_outbox_keeps(blobs: Blobs, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x")
    for operation in (blobs.put(b"x"), blobs.put(file)):
        again = blobs.restore(operation.serialised())
        assert again.serialised() == operation.serialised()
        assert again.request == operation.request
    with pytest.raises(UsageError, match="too many for an outbox"):
        blobs.put(b"x" * MIB).serialised()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"recipient": "other"}, "of recipient 'other'"),
        ({"operation": "get"}, "'get'"),
        ({"format": 2}, "format 2"),
        ({"arguments": None}, "no serialised operation"),
        ({"arguments": {}}, "no serialised operation|reference"),
        ({"arguments": {"content": "%%", "digest": "x", "size": 1, "media_type": "a/b"}}, "no serialised operation"),
    ],
)
def test_what_is_no_serialised_put_is_refused(blobs: Blobs, change: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        blobs.restore(blobs.put(b"x").serialised() | change)


# --- streams for asyncio


@pytest.mark.rule("K1", "K6")
def test_streams_are_awaited(root: Path) -> None:
    data = some_bytes(2 * MIB + 9)

    async def streamed() -> None:
        blobs = AsyncBlobs(f"file://{root}")
        async with blobs.writer(media_type="text/plain") as writer:
            for at in range(0, len(data), 300_000):
                await writer.write(data[at : at + 300_000])
            outcome = await writer.seal()
            assert writer.written == len(data)
        assert isinstance(outcome, Accepted)
        async with blobs.reader(outcome.proof, start=5) as reader:
            assert await reader.read(3) == data[5:8]
            assert b"".join([piece async for piece in reader]) == data[8:]
        assert (await blobs.check(outcome.proof)).sound
        assert [found async for found in blobs.references()] == [outcome.proof]
        async with blobs.writer() as given_up:
            await given_up.write(b"x")
        assert (await blobs.clean()).removed == 0
        assert on_their_way(root) == []

    asyncio.run(streamed())


@pytest.mark.rule("K2")
def test_a_cancelled_writer_leaves_nothing_behind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    whole = Blobs.writer

    def held(self: Blobs, **more: Any) -> Any:
        writer = whole(self, **more)
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return writer

    monkeypatch.setattr(Blobs, "writer", held)

    async def cancelled() -> None:
        async def store() -> None:
            async with AsyncBlobs(f"file://{root}").writer() as writer:
                await writer.write(b"never")
                await writer.seal()

        task = asyncio.create_task(store())
        assert await asyncio.get_running_loop().run_in_executor(None, begun.wait, PATIENCE_S)
        task.cancel()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert on_their_way(root) == []
    assert list(Blobs(f"file://{root}").references()) == []

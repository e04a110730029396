"""The disk is full: before the intent nothing is sent; after it the proof is kept and recorded when there is room."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

from counterfoil import Accepted, AsyncRuntime, CounterfoilError, LedgerUnavailable, Runtime
from tests.torture.arena import Arena, Site, site
from tests.torture.bodies import finding
from tests.torture.judge import Counts
from tests.torture.processes import Crew, Worker
from tests.torture.programs import Journal, effect

PATIENCE_S: Final = 60.0
STORIES: Final = ("before", "between", "kept", "killed", "left", "crowded")
PROOF_SIZE: Final = 20_000  # more than any page has left
_CLONE_NEWNS: Final = 0x00020000
_MS_REC_PRIVATE: Final = 0x44000


# --- disks


class Disk(Protocol):
    """Something that can be full."""

    def fill(self, runtime: Any) -> None:
        """Leave no room for the ledger."""
        ...

    def free(self, runtime: Any) -> None:
        """Give the room back."""
        ...


class SmallDisk:
    """A small file system; it is full when a file has taken all that was left."""

    def __init__(self, place: Site) -> None:
        self._filler = place.database.parent / "filler"

    def fill(self, runtime: Any) -> None:
        """Empty the WAL, since it would use again what it has once taken; then take everything."""
        _pragma(runtime, "PRAGMA wal_checkpoint(TRUNCATE)")
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for size in (65536, 4096, 1):
            with suppress(OSError):
                while True:
                    os.write(descriptor, bytes(size))
        os.close(descriptor)

    def free(self, runtime: Any) -> None:
        """Remove the file."""
        self._filler.unlink(missing_ok=True)


class FewPages:
    """A bound on the pages of the connection that writes; it acts in this process only."""

    def fill(self, runtime: Any) -> None:
        """Bound the database to the pages that it has."""
        _pragma(runtime, f"PRAGMA max_page_count = {_pragma(runtime, 'PRAGMA page_count')}")

    def free(self, runtime: Any) -> None:
        """Lift the bound."""
        _pragma(runtime, "PRAGMA max_page_count = 1000000")


def _pragma(runtime: Any, sql: str) -> Any:
    database = runtime.ledger._database
    with database.write_lock:
        return database.writing().execute(sql)[0][0]


def mounted(connection: Connection, folder: str) -> None:
    """Mount a small file system that only this process and those that join it can see, and hold it."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = (
        libc.unshare(_CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None) == 0
        and libc.mount(b"none", folder.encode(), b"tmpfs", 0, b"size=16m") == 0
    )
    connection.send("mounted" if done else os.strerror(ctypes.get_errno()))
    connection.recv()


def join(pid: int) -> None:
    """See the file systems of another process."""
    if pid:
        with open(f"/proc/{pid}/ns/mnt", "rb") as namespace:  # noqa: PTH123
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNS) != 0:
                raise OSError(ctypes.get_errno(), "setns")


# --- stories


class Teller:
    """One life in one colour, asked from outside one thing after the other."""

    def __init__(self, place: Site, disk: Disk, colour: str) -> None:
        self._place = place
        self._journal = Journal(place.told)
        self._disk = disk
        self._loop = asyncio.new_event_loop() if colour == "asyncio" else None
        self._runtime: Any
        if self._loop is None:
            self._runtime = Runtime(place.url).__enter__()
        else:
            self._runtime = self._loop.run_until_complete(AsyncRuntime(place.url).__aenter__())

    def close(self) -> None:
        """End this life."""
        if self._loop is None:
            self._runtime.__exit__(None, None, None)
        else:
            self._loop.run_until_complete(self._runtime.__aexit__(None, None, None))
            self._loop.close()

    def tell(self, story: str, run: str) -> bool:
        """Tell a story; return whether the disk was full when it mattered."""
        told: Callable[[str], bool] = getattr(self, f"_{story}")
        try:
            return told(run)
        finally:
            self._disk.free(self._runtime)

    def _charging(self, fills: Any = None) -> dict[str, Any]:
        self.made: list[str] = []

        def send(context: Any) -> str:
            self.made.append(self._place.client.make(context.key, size=PROOF_SIZE))
            if fills is not None:
                self._disk.fill(fills)
            return self.made[-1]

        return {"run": send, "reconcile": finding(self._place.client)}

    def charge(self, run: str, *, fills: bool = False) -> Any:
        """Ask for the effect; with `fills` the disk is full when the recipient has answered."""
        more = self._charging(self._runtime if fills else None)
        outcome = self._blocking(run, more) if self._loop is None else self._loop.run_until_complete(self._a(run, more))
        self._journal.tell(run, effect("charge"), outcome)
        return outcome

    def _blocking(self, run: str, more: dict[str, Any]) -> Any:
        with self._runtime.run(run) as handle:
            return handle.effect("charge", **more)

    async def _a(self, run: str, more: dict[str, Any]) -> Any:
        async with self._runtime.run(run) as handle:
            return await handle.effect("charge", **more)

    def _use_up(self) -> None:
        # What is left in the pages that there are is used up by small records.
        self._disk.fill(self._runtime)
        with suppress(LedgerUnavailable):
            for count in range(10_000):
                run = f"filler-{os.getpid()}-{time.monotonic_ns()}-{count}"
                if self._loop is None:
                    with self._runtime.run(run) as handle:
                        handle.step("s", lambda: None)
                else:
                    self._loop.run_until_complete(self._fill_one(run))

    async def _fill_one(self, run: str) -> None:
        async with self._runtime.run(run) as handle:
            await handle.step("s", lambda: None)

    def _before(self, run: str) -> bool:
        self._use_up()
        try:
            self.charge(run)
        except LedgerUnavailable as error:
            # Few pages may have had room for the intent and none for the outcome: then it was sent, and says so.
            full = not self.made
            said = (error.effect_ran, error.proof)
            _must(said == (("no", None) if full else ("yes", self.made[0])), f"effect_ran and proof are {said}")
        else:
            full = False
        self._disk.free(self._runtime)
        outcome = self.charge(run)
        _must(isinstance(outcome, Accepted), f"with room again: {outcome}")
        return full

    def _lost(self, run: str) -> str | None:
        """Run into a full disk behind the recipient's answer; return the proof, None if there was room."""
        try:
            self.charge(run, fills=True)
        except LedgerUnavailable as error:
            _must(error.effect_ran == "yes", f"effect_ran is {error.effect_ran!r} behind the answer")
            _must([error.proof] == self.made, f"the error carries {error.proof!r}")
            return str(error.proof)
        return None

    def _between(self, run: str) -> bool:
        proof = self._lost(run)
        if proof is None:
            return False
        with suppress(LedgerUnavailable):
            outcome = self.charge(run)
            raise AssertionError(f"the disk is full, and the outcome is {outcome}")
        _must(not self.made, "it was sent again")
        self._disk.free(self._runtime)
        outcome = self.charge(run)
        _must(isinstance(outcome, Accepted) and outcome.via == "run" and outcome.proof == proof, str(outcome))
        return True

    def _kept(self, run: str) -> bool:
        proof = self._lost(run)
        if proof is None:
            return False
        self._disk.free(self._runtime)
        give_up = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up:
            if self._loop is None:
                time.sleep(0.1)
                (view,) = self._runtime.effects(run_id=run)
            else:
                self._loop.run_until_complete(asyncio.sleep(0.1))
                (view,) = self._loop.run_until_complete(self._runtime.effects(run_id=run))
            if view.state == "accepted":
                _must(view.outcome.via == "run" and view.outcome.proof == proof, str(view.outcome))
                return True
        raise AssertionError("there is room, and the proof was not recorded")

    def _killed(self, run: str) -> bool:
        if self._lost(run) is None:
            return False
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    def _left(self, run: str) -> bool:
        """Leave a whole life while the disk is full: its caller gets the proof, and the next life asks."""
        try:
            with Runtime(self._place.url) as other, other.run(run) as handle:
                handle.effect("charge", **self._charging(other))
        except LedgerUnavailable as error:
            _must(error.effect_ran == "yes" and [error.proof] == self.made, f"the caller got {error!r}")
        else:
            return False
        self._disk.free(self._runtime)
        outcome = self.charge(run)
        _must(isinstance(outcome, Accepted) and outcome.via == "reconcile", str(outcome))
        return True

    def _crowded(self, run: str) -> bool:
        """Open the ledger anew while the disk is full: it opens or says why not, and harms nothing."""
        self.charge(run)
        self._disk.fill(self._runtime)
        try:
            with Runtime(self._place.url) as other, other.run(f"{run}-other") as handle:
                handle.step("s", lambda: "x" * PROOF_SIZE)
        except CounterfoilError:
            return True
        return False


def _must(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(text[:500])


def teller(connection: Connection, place: Site, kind: str, colour: str, pid: int) -> None:
    """Tell stories as asked, or finish what a killed one began."""
    join(pid)
    disk: Disk = SmallDisk(place) if kind == "disk" else FewPages()
    if kind == "disk":
        disk.free(None)
    told = Teller(place, disk, colour)
    while (message := connection.recv()) is not None:
        story, run = message
        if story == "finish":
            outcome = told.charge(run)
            _must(isinstance(outcome, Accepted) and outcome.via == "reconcile", str(outcome))
            connection.send(("told", True))
        else:
            connection.send(("told", told.tell(story, run)))
    told.close()


def judged(connection: Connection, place: Site, pid: int) -> None:
    """Judge where the disk can be seen."""
    join(pid)
    connection.send(place.judge())


# --- the campaign


@dataclass(frozen=True)
class Cell:
    """One kind of disk, one engine, one colour, and the process that holds the disk (0: none)."""

    kind: str
    colour: str
    place: Site
    pid: int


class Telling:
    """Has stories told in one cell."""

    def __init__(self, arena: Arena, crew: Crew, cell: Cell) -> None:
        self._arena = arena
        self._crew = crew
        self._cell = cell
        self._count = 0
        self._worker: Worker | None = None
        self.full = 0

    def tell(self, story: str) -> None:
        """Have one story told."""
        if story == "crowded" and self._cell.kind == "pages":
            return  # the bound acts on the connection that it was set on only
        self._count += 1
        run = f"{story}-{self._cell.colour}-{self._count}"
        reply = self._asked((story, run))
        if story == "killed" and reply is None:
            self._arena.counts.kills += 1
            self._worker = None
            self.full += 1
            reply = self._asked(("finish", run))
        elif reply == ("told", True):
            self.full += 1
        if reply is None or reply[0] != "told":
            text = "ended without a word" if reply is None else reply[1]
            self._arena.problem(f"{self._cell.place.folder}, {self._cell.kind}, {run}: {text}")
            self._worker = None

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.send(None)
            if not self._worker.ended(PATIENCE_S):
                self._arena.problem("a worker did not come to its end")

    def _asked(self, message: Any) -> Any:
        cell = self._cell
        if self._worker is None:
            self._worker = self._crew.start(teller, cell.place, cell.kind, cell.colour, cell.pid)
        self._worker.send(message)
        return self._worker.receive(PATIENCE_S)


def _disks(arena: Arena, crew: Crew, engine: str) -> list[tuple[str, Site, int]]:
    pages = site(arena, crew, engine)
    found = [("pages", pages, 0)]
    small = site(arena, crew, engine)
    folder = small.folder / "disk"
    folder.mkdir()
    small = replace(small, database=folder / "ledger.db")
    holder = crew.start(mounted, str(folder))
    said = holder.receive(PATIENCE_S) if sys.platform == "linux" else "this is not Linux"
    if said == "mounted":
        found.append(("disk", small, holder.pid))
    else:
        arena.say(f"no small file system can be mounted here ({said}): only SQLite's own bound is used")
    return found


def campaign(arena: Arena, *, halved: bool = False) -> None:
    """Tell every story on every kind of disk, engine and colour, again and again while the time lasts.

    Args:
        arena: where.
        halved: on each kind of disk, each engine has one colour only.
    """
    told = 0
    with Crew() as crew:
        disks = [each for engine in ("apsw", "sqlite3") for each in _disks(arena, crew, engine)]
        cells = [
            Cell(kind, colour, place, pid)
            for kind, place, pid in disks
            for colour in ("blocking", "asyncio")
            if not halved or (kind == "disk") ^ (place.engine == "apsw") ^ (colour == "asyncio")
        ]
        arena.random.shuffle(cells)
        tellings = [Telling(arena, crew, cell) for cell in cells]
        while told == 0 or (arena.left_s > 0 and not arena.counts.problems):
            for telling in tellings:
                for story in STORIES:
                    telling.tell(story)
                    told += 1
        for telling in tellings:
            telling.close()
        full = sum(telling.full for telling in tellings)
        for _, place, pid in disks:
            counts = crew.start(judged, place, pid).receive(PATIENCE_S)
            if isinstance(counts, Counts):
                arena.counts.add(counts)
            else:
                arena.problem(f"{place.folder} cannot be judged: {counts}")
    if full < told / 2:
        arena.problem(f"the disk was full in {full} of {told} stories only")
    arena.say(f"{told} stories on {len(disks)} disks, full when it mattered in {full}")


__all__ = ["campaign"]

"""Syncs fail, and the power is cut: nobody sends twice, and no record that a caller was told of is missing."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import apsw

from counterfoil import CounterfoilError, LedgerUnavailable, Runtime
from counterfoil.effects import record
from tests.torture import bodies, disks
from tests.torture.arena import Arena, Site, site
from tests.torture.processes import Crew
from tests.torture.programs import Journal, carry
from tests.torture.recipient import Client

PATIENCE_S: Final = 120.0
ORDERS: Final = 3
CUTS: Final = 4
SETTLE_S: Final = 0.3


def take(place: Site, runs: list[str]) -> list[str]:
    """Carry orders at once in a life of their own; return what was not right.

    A ledger that cannot record is no fault here; but where a sync has failed, nothing may be sent any more.
    """
    # A disk that never syncs again would be given 30 s for each record.
    vars(record)["SETTLE_S"] = SETTLE_S
    journal = Journal(place.told)
    wrong: list[str] = []
    try:
        with Runtime(place.url) as runtime, ThreadPoolExecutor(ORDERS * 2) as threads:
            for body in (bodies.post, bodies.order):
                # What was not delivered would be waited for without end.
                doing = [
                    threads.submit(carry, runtime, run, partial(body, place.client, run), journal=journal)
                    for run in runs
                ]
                errors = [error for done in doing if (error := done.exception()) is not None]
                wrong += [repr(error) for error in errors if not isinstance(error, CounterfoilError)]
                if errors:
                    break
            if runtime.ledger._transactions.sync_failed:  # type: ignore[attr-defined]
                wrong += _refused(runtime, f"{runs[0]}-afterwards")
    except (CounterfoilError, apsw.IOError):
        # apsw raises what a disk written in Python raises while a connection is closed; SQLite itself does not.
        pass
    return wrong


def _refused(runtime: Runtime, run: str) -> list[str]:
    sent: list[int] = []
    try:
        with runtime.run(run) as handle:
            handle.effect("charge", run=lambda: sent.append(1), reconcile=lambda: None)
    except LedgerUnavailable as error:
        if not sent and error.effect_ran == "no":
            return []
        return [f"after a failed sync: sent {len(sent)}, effect_ran {error.effect_ran}"]
    return [f"after a failed sync an effect ended; sent {len(sent)}"]


def failing(connection: Connection, place: Site, runs: list[str], nth: int, for_good: bool) -> None:
    """Take orders on a disk whose n-th sync fails."""
    disk = disks.FailingDisk(nth, for_good=for_good)
    wrong = take(place, runs)
    connection.send(("ended", wrong, disk.failed))


def powered(connection: Connection, place: Site, runs: list[str], nth: int, seed: int) -> None:
    """Take orders until the power is cut; says `clean` if it was not."""
    after = place.folder / "after"
    disk = disks.VolatileDisk(place.database.parent, after, nth=nth, chance=random.Random(seed))
    connection.send(("ended", take(place, runs), disk.left))


def finishing(connection: Connection, place: Site, runs: list[str]) -> None:
    """Finish orders on a sound disk."""
    wrong: list[str] = []
    journal = Journal(place.told)
    with Runtime(place.url) as runtime, ThreadPoolExecutor(len(runs)) as threads:
        for body in (bodies.post, bodies.order):
            doing = [
                threads.submit(carry, runtime, run, partial(body, place.client, run), journal=journal) for run in runs
            ]
            wrong += [repr(error) for done in doing if (error := done.exception()) is not None]
    connection.send(("ended", wrong, 0))


class Cells:
    """Runs the kinds of cells of this campaign; each has a site of its own."""

    def __init__(self, arena: Arena, crew: Crew) -> None:
        self._arena = arena
        self._crew = crew
        self.done: dict[str, int] = {}

    def failed_sync(self) -> None:
        """Fail one sync, or all from one on, and let another life finish."""
        chance = self._arena.random
        place = site(self._arena, self._crew, "apsw")
        runs = [f"order-{count}" for count in range(ORDERS)]
        failed = 0
        for _ in range(2):
            nth, for_good = chance.randint(1, 60), chance.random() < 0.5
            said = self._life(place, failing, runs, nth, for_good)
            failed += said[2] if said else 0
        self._life(place, finishing, runs)
        self._count("syncs failed", failed)
        self._arena.counts.add(place.judge())

    def power_cut(self) -> None:
        """Cut the power several times, judge what is left each time, and let another life finish."""
        chance = self._arena.random
        place = site(self._arena, self._crew, "apsw")
        runs: list[str] = []
        for cut in range(CUTS + 1):
            folder = place.folder / f"disk-{cut}"
            if cut == 0:
                folder.mkdir()
            else:
                (place.folder / "after").rename(folder)
            place = replace(place, database=folder / "ledger.db")
            runs += [f"order-{cut}-{count}" for count in range(ORDERS)]
            if cut:
                self._arena.counts.problems += place.judge().problems
            if cut == CUTS:
                break
            (place.folder / "after").mkdir()
            worker = self._crew.start(
                powered, place, runs[-2 * ORDERS :], chance.randint(1, 250), chance.randrange(1 << 30)
            )
            said = worker.receive(PATIENCE_S)
            self._crew.kill(worker)
            if said is None:
                self._count("power cuts", 1)
                continue
            if said[0] != "ended" or said[1]:
                self._arena.problem(f"{place.folder}: {said}")
            (place.folder / "after").rmdir()
            shutil.copytree(folder, place.folder / "after")
        self._life(place, finishing, runs)
        self._arena.counts.add(place.judge())

    def traced(self, strace: str) -> None:
        """Have the kernel fail or kill at a sync, whatever the engine."""
        chance = self._arena.random
        place = site(self._arena, self._crew, chance.choice(("apsw", "sqlite3")))
        runs = [f"order-{count}" for count in range(ORDERS)]
        for _ in range(2):
            nth = chance.randint(1, 40)
            what = chance.choice(("signal=SIGKILL", "error=EIO", "error=EIO"))
            when = f"{nth}+" if what == "error=EIO" and chance.random() < 0.3 else str(nth)
            inject = f"inject=fdatasync,fsync:{what}:when={when}"
            command = [strace, "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e", inject]
            command += [sys.executable, "-m", "tests.torture.sync", str(place.folder), place.engine, *runs]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            killed = what.startswith("signal") and ended.returncode in (-9, 137)
            self._arena.counts.kills += killed
            self._count("traced lives", 1)
            if ended.returncode and not killed:
                self._arena.problem(f"{place.folder}, {inject}: {ended.returncode}, {ended.stderr[-1500:]}")
        self._life(place, finishing, runs)
        self._arena.counts.add(place.judge())

    def _life(self, place: Site, target: Any, *args: Any) -> Any:
        worker = self._crew.start(target, place, *args)
        said = worker.receive(PATIENCE_S)
        self._crew.kill(worker)
        if said is None or said[0] != "ended" or said[1]:
            self._arena.problem(f"{place.folder}, {target.__name__} {args}: {said}")
            return None
        return said

    def _count(self, what: str, number: int) -> None:
        self.done[what] = self.done.get(what, 0) + number


def usable_strace() -> tuple[str | None, str]:
    """Return strace, or None and why it cannot be used."""
    strace = shutil.which("strace")
    if strace is None:
        return None, "there is no strace"
    tried = subprocess.run([strace, "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return None, tried.stderr.strip().splitlines()[-1] if tried.stderr.strip() else "it failed"
    return strace, ""


def campaign(arena: Arena) -> None:
    """Go through the kinds of cells in turn while the time lasts."""
    strace, why = usable_strace()
    if strace is None:
        arena.say(f"no syncs are failed by the kernel here: {why}")
    with Crew() as crew:
        cells = Cells(arena, crew)
        kinds = [cells.power_cut, cells.failed_sync]
        if strace is not None:
            kinds.append(partial(cells.traced, strace))
        turn = 0
        while turn < len(kinds) or (arena.left_s > 0 and not arena.counts.problems):
            kinds[turn % len(kinds)]()
            turn += 1
            arena.progress(", ".join(f"{number} {what}" for what, number in cells.done.items()))
    arena.say(", ".join(f"{number} {what}" for what, number in cells.done.items()))


def main(folder: str, engine: str, *runs: str) -> int:
    """Take orders in a process that is traced."""
    place = Site(Path(folder), engine, Client(f"{folder}/socket"), Path(folder) / "ledger.db")
    wrong = take(place, list(runs))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))


__all__ = ["campaign"]

"""Processes put blobs into one bucket and are killed at random, and so are those that clean up behind them."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, cast

from counterfoil import Blobs, Secret
from counterfoil.recipients.blobs.s3.bucket import Bucket
from counterfoil.recipients.blobs.s3.journal import Journal
from tests.blobs.endpoints import KNOWN, SERVERS, Endpoint
from tests.blobs.s3_support import HOST, SECRET, Meddler
from tests.servers.starting import server_folder, until
from tests.torture import blobs as local
from tests.torture.arena import Arena
from tests.torture.processes import Crew, Worker

SIZES: Final = (0, 10, 5_000, 1 << 20, 6 << 20)
PART_BYTES: Final = 5 << 20
# While writers are killed nothing is forgotten: what they sent last may be on its way for long where much is to do.
SETTLE_S: Final = 600.0
ROUNDS_MAX: Final = 10
# A writer needs about ten for a blob.
REQUESTS_MAX: Final = 30


@dataclass(frozen=True)
class Place:
    """Where the blobs go, in words that every process understands."""

    port: int
    access: str
    weak: str
    folder: str

    def opened(self, settle_s: float = SETTLE_S) -> Blobs:
        """Return the bucket."""
        return Blobs(
            f"s3://torture/some/prefix?endpoint=http://{HOST}:{self.port}",
            credentials=(self.access, Secret(f"file:{self.folder}/secret")),
            journal=f"{self.folder}/journal",
            weak=self.weak,
            part_bytes=PART_BYTES,
            settle_s=settle_s,
            timeout_s=SETTLE_S,
        )


def writer(connection: Connection, place: Place, seed: int) -> None:
    """Write blobs until killed, and tell each reference that was accepted; now and then give one up."""
    local.write_on(connection, place.opened(), seed, sizes=SIZES, given_up=0.1)


def cleaner(connection: Connection, place: Place) -> None:
    """Clean without pause."""
    blobs = place.opened()
    while True:
        blobs.clean(limit=3)
        connection.poll(0.01)


def campaign(
    arena: Arena, *, names: tuple[str, ...] = ("ministack", "juicefs"), writers: int = 3, kills_min: int = 1
) -> None:
    """Kill writers and cleaners at random moments while the time lasts; what was told is there, and nothing else."""
    for name in names:
        with _place(arena, name) as (place, between):
            until, before = arena.share(1.0 / len(names)), arena.counts.kills
            told: dict[str, dict[str, Any]] = {}

            def goes_on(until: float = until, before: int = before, told: Any = told) -> bool:
                # However slow the machine is, something is killed, and something is told.
                return time.monotonic() < until or arena.counts.kills - before < kills_min or not told

            _tortured(arena, place, between, goes_on=goes_on, writers=writers, told=told)
            _judge(arena, place, between, told)


@contextmanager
def _place(arena: Arena, name: str) -> Iterator[tuple[Place, Meddler]]:
    """Start a server, with somebody in front of it who knows what is on its way, and make a bucket."""
    running, folder, server = server_folder("s3"), arena.folder / f"bucket-{name}", None
    folder.mkdir()
    (folder / "secret").write_text(SECRET, "utf-8")
    try:
        server = SERVERS[name](running)
        with Meddler(Endpoint(name, server, server.port, server.access)) as between:
            # Not every request for ever: their bodies are in it.
            between.seen = cast("list[Any]", deque(maxlen=16))
            weak = "refuse" if KNOWN[name].strong else "verify"
            place = Place(between.endpoint.port, server.access, weak, str(folder))
            bucket = _bucket(place.opened())
            assert bucket.client.ask("PUT", "").status == 200
            assert bucket.capabilities == KNOWN[name]
            yield place, between
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(running, ignore_errors=True)


def _tortured(
    arena: Arena, place: Place, between: Meddler, *, goes_on: Callable[[], bool], writers: int, told: dict[str, Any]
) -> None:
    requests = [0]

    def counted(_seen: Any) -> None:
        requests[0] += 1

    between.before = counted

    def started(crew: Crew, number: int) -> Worker:
        # The last one cleans.
        if number == writers:
            return crew.start(cleaner, place)
        return crew.start(writer, place, arena.random.randrange(1 << 30))

    with Crew() as crew:
        crewed = [started(crew, number) for number in range(writers + 1)]
        while goes_on():
            # Not after some time: that may be too short for anything where the machine is busy.
            due = requests[0] + arena.random.randrange(REQUESTS_MAX)
            while requests[0] < due and goes_on():
                time.sleep(0.001)
            number = arena.random.randrange(writers + 1)
            victim, crewed[number] = crewed[number], started(crew, number)
            arena.counts.acknowledged += local.killed(arena, crew, victim, told, sizes=SIZES)
            arena.counts.kills += 1
            arena.progress(f"{arena.counts.kills} kills, {arena.counts.acknowledged} blobs acknowledged")
        for victim in crewed:
            arena.counts.acknowledged += local.killed(arena, crew, victim, told, sizes=SIZES)


def _judge(arena: Arena, place: Place, between: Meddler, told: dict[str, dict[str, Any]]) -> None:
    """Compare what was told with what the bucket lists, once nothing is on its way to it any more."""
    until(lambda: not between.under_way, failing=lambda: f"{between.under_way} requests are on their way for ever")
    blobs = place.opened(settle_s=0.0)
    local.check(arena, blobs, told)
    cleaned = blobs.clean(limit=1_000_000)
    for _ in range(ROUNDS_MAX):
        if not cleaned.in_flight:
            break
        cleaned = blobs.clean(limit=1_000_000)
    if cleaned.in_flight:
        arena.problem(f"something is in flight when nobody is: {cleaned}")
    local.check(arena, blobs, told)
    bucket = _bucket(blobs)
    if (still := bucket.client.ask("GET", "", params={"uploads": ""}).texts("Upload", "UploadId")) != []:
        arena.problem(f"uploads are left: {still}")
    _account(arena, bucket)


def _account(arena: Arena, bucket: Bucket) -> None:
    """Show that all bytes in the bucket belong to a record, or to one that may still arrive, and each to one alone."""
    keys = list(bucket.keys(""))
    records = [key for key in keys if "/sealed/" in key]
    held = [bucket.holder(key) for key in records]
    awaited = [str((log.first("create") or {})["key"]) for log in _logs(bucket.journal)]
    for key in set(keys) - set(records) - set(held) - set(awaited):
        arena.problem(f"bytes of no blob were not removed: {key}")
    if len(held) != len(set(held)):
        arena.counts.doubled += 1
        arena.problem("two records lead to the same bytes")
    if bucket.capabilities.strong and len({key.rpartition("/")[0] for key in records}) != len(records):
        arena.counts.doubled += 1
        arena.problem("a blob has two records")
    arena.say(f"{len(records)} blobs in the bucket, {len(awaited)} whose record may still arrive")


def _logs(journal: Journal) -> Iterator[Any]:
    for _, log in journal.left():
        assert log is not None
        log.close()
        yield log


def _bucket(blobs: Blobs) -> Bucket:
    assert isinstance(blobs.store, Bucket)
    return blobs.store

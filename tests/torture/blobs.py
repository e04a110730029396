"""Processes write blobs into one folder and are killed at random, while another cleans up behind them."""

from __future__ import annotations

import random
import time
from functools import cache
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final

from counterfoil import Accepted, Blobs
from tests.torture.arena import Arena
from tests.torture.processes import Crew, Worker

SIZES: Final = (0, 10, 5_000, 1 << 20, (3 << 20) + 7, 20 << 20)
# Few enough that writers often come with the same bytes.
KINDS: Final = 40
Sizes = tuple[int, ...]
PATIENCE_S: Final = 60.0


def content(kind: int, sizes: Sizes = SIZES) -> tuple[bytes, int]:
    """Return what the blobs of one kind are made of: a piece, and how often."""
    size = sizes[kind % len(sizes)]
    piece = random.Random(kind).randbytes(min(size, 1 << 20))
    return piece, size // len(piece) if piece else 0


@cache
def digest(kind: int, sizes: Sizes = SIZES) -> str:
    """Return the digest of the blobs of one kind."""
    piece, times = content(kind, sizes)
    whole = sha256()
    for _ in range(times):
        whole.update(piece)
    return f"sha256:{whole.hexdigest()}"


def writer(connection: Connection, url: str, seed: int) -> None:
    """Write blobs until killed, and tell each reference that was accepted."""
    write_on(connection, Blobs(url), seed)


def write_on(connection: Connection, blobs: Blobs, seed: int, *, sizes: Sizes = SIZES, given_up: float = 0.0) -> None:
    """Write blobs until killed, and tell each reference that was accepted.

    Args:
        connection: to whom it is told.
        blobs: where they go.
        seed: of what is left to chance.
        sizes: that blobs have.
        given_up: the share of those that are not sealed.
    """
    chance = random.Random(seed)
    connection.send("ready")
    while True:
        kind = chance.randrange(KINDS)
        piece, times = content(kind, sizes)
        with blobs.writer() as one:
            for _ in range(times):
                one.write(piece)
            if chance.random() < given_up:
                continue
            outcome = one.seal()
        connection.send((kind, outcome.proof if isinstance(outcome, Accepted) else repr(outcome)))


def cleaner(connection: Connection, url: str) -> None:
    """Clean without pause; whatever is cleaned too early is missed by its writer."""
    blobs = Blobs(url)
    removed = 0
    while not connection.poll(0.001):
        removed += blobs.clean(limit=3).removed
    connection.send(removed)


def campaign(arena: Arena, *, writers: int = 4) -> None:
    """Kill writers at random moments while the time lasts; whatever was told is there, and nothing else is left."""
    folder = arena.folder / "blobs"
    url = folder.as_uri()
    told: dict[str, dict[str, Any]] = {}
    kills = acknowledged = 0
    with Crew() as crew:
        broom = crew.start(cleaner, url)
        crewed = [crew.start(writer, url, arena.random.randrange(1 << 30)) for _ in range(writers)]
        # The time counts from when one of them is ready and has told of a blob.
        crewed[0].receive(PATIENCE_S)
        crewed[0].connection.poll(PATIENCE_S)
        until = arena.share(1.0)
        while time.monotonic() < until or not kills:
            time.sleep(arena.random.uniform(0, 0.2))
            place = arena.random.randrange(writers)
            victim = crewed[place]
            crewed[place] = crew.start(writer, url, arena.random.randrange(1 << 30))
            acknowledged += killed(arena, crew, victim, told)
            kills += 1
            arena.progress(f"{kills} kills, {acknowledged} blobs acknowledged")
        for victim in crewed:
            acknowledged += killed(arena, crew, victim, told)
        broom.send(None)
        swept = broom.receive(PATIENCE_S)
        broom.ended(PATIENCE_S)
    arena.counts.kills += kills
    arena.counts.acknowledged += acknowledged
    _judge(arena, folder, told)
    arena.say(f"{len(told)} different blobs, leftovers of {swept} killed writers were removed while others wrote")


def killed(arena: Arena, crew: Crew, victim: Worker, told: dict[str, dict[str, Any]], *, sizes: Sizes = SIZES) -> int:
    """Kill a writer and take in what it said before; returns how many blobs it was told are sealed."""
    victim.signal(SIGKILL)
    victim.process.join()
    count = 0
    while (said := victim.receive(0.0)) is not None:
        if said == "ready":
            continue
        if said[0] == "broke":
            arena.problem(str(said[1]))
            continue
        kind, proof = said
        if not isinstance(proof, dict) or proof["digest"] != digest(kind, sizes):
            arena.problem(f"kind {kind}: {proof}")
            continue
        told[proof["digest"]] = proof
        count += 1
    crew.kill(victim)
    return count


def _judge(arena: Arena, folder: Path, told: dict[str, dict[str, Any]]) -> None:
    blobs = Blobs(folder.as_uri())
    check(arena, blobs, told)
    cleaned = blobs.clean(limit=1_000_000, within_s=PATIENCE_S)
    if cleaned.in_flight or cleaned.left or any((folder / "writing").iterdir()):
        arena.problem(f"something is left when nobody is: {cleaned}")


def check(arena: Arena, blobs: Blobs, told: dict[str, dict[str, Any]]) -> None:
    """Read all that can be seen: it is what it is called, and what was told is among it."""
    sound = set()
    for checked in blobs.check_all():
        if checked.sound:
            sound.add(checked.reference["digest"])
        else:
            arena.problem(f"{checked.reference}: {checked.fault}")
    for missing in told.keys() - sound:
        arena.counts.lost += 1
        arena.problem(f"acknowledged, and not there: {missing}")

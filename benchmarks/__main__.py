"""`python -m benchmarks`: measure, and print what came out beside what is aimed at."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from benchmarks import blobs, endurance, footprint, jetstream, ours, outbox, peers, plots, postgres, raw, replay
from benchmarks.measure import Contender
from benchmarks.tables import compared, show


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about a minute instead of many; rough")
    parser.add_argument("--json", metavar="FILE", help="write everything that was measured, too")
    parser.add_argument("--plot", metavar="FILE", help="draw it (PNG)")
    parser.add_argument("--only", metavar="WORD", help="only the parts whose title has this word")
    parser.add_argument("--folder", help="where the ledgers are written; its disk is what is measured")
    parser.add_argument(
        "--grown",
        metavar="N",
        type=int,
        help="effects and intents on record where it is measured what that costs (20,000; the aim is for 1,000,000)",
    )
    chosen = parser.parse_args()
    # Servers are started in a temporary folder, too.
    tempfile.tempdir = chosen.folder
    folder = tempfile.mkdtemp(prefix="counterfoil-bench-", dir=chosen.folder)
    found: dict[str, Any] = {"machine": machine(), "quick": chosen.quick, "parts": {}}
    print(f"{found['machine']}\n")
    try:
        for title, part in parts(chosen.grown or (2_000 if chosen.quick else 20_000)).items():
            if chosen.only is None or chosen.only in title:
                here = f"{folder}/{len(found['parts'])}"
                Path(here).mkdir(parents=True)
                print(title)
                found["parts"][title] = part(here, hurried=chosen.quick)
                shutil.rmtree(here)
                print(flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if chosen.plot:
        Path(chosen.plot).parent.mkdir(parents=True, exist_ok=True)
        plots.draw(found, chosen.plot)


def machine() -> str:
    when = time.strftime("%Y-%m-%d %H:%M")
    return (
        f"{when} · {os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()} · "
        f"Python {platform.python_version()} · SQLite {apsw.sqlite_lib_version()} · load {os.getloadavg()[0]:.1f}"
    )


def replayed(folder: str, *, hurried: bool) -> dict[str, Any]:
    effects = 20_000 if hurried else 100_000
    file = replay.write(f"{folder}/run", effects)
    found = replay.measure(file, effects)
    show("effects on record", f"{found['effects']:,}")
    show("first read, records per second", f"{found['records_per_s']:,.0f}", "200,000")
    show("open, read and replay all, s", f"{found['replay_all_s']:.2f}", "under 1")
    show("peak memory of that process, MiB", f"{found['peak_mib']:.0f}", "under 250")
    show("replayed within a live run, per second", f"{found['live_per_s']:,.0f}", "100,000")
    show("the same in the asyncio colour", f"{found['live_async_per_s']:,.0f}", "100,000")
    return found


def measured(folder: str, *, hurried: bool) -> dict[str, Any]:
    size = footprint.bytes_per_effect(f"{folder}/size", runs=3 if hurried else 20)
    imported = footprint.import_ms()
    show("bytes per effect, runs of 1,000 with a request", f"{size:.0f}", "at most 400")
    show("import counterfoil, ms (median of 5)", f"{imported:.1f}", "under 50")
    return {"bytes_per_effect": size, "import_ms": imported}


def lived(folder: str, *, hurried: bool) -> dict[str, Any]:
    samples = endurance.measure(f"{folder}/life", 50_000 if hurried else 1_000_000)
    found = endurance.summary(samples)
    for text in plots.curve(samples):
        print(f"  {text}")
    print()
    show("runs of 10 effects each, in one process", f"{found['runs']:,.0f}", "" if hurried else "100,000")
    show("processor time for an effect, last fifth to first", f"{found['cost_ratio']:.2f}", "at most 1.10")
    show("memory, last fifth less first, MiB", f"{found['grown_mib']:+.1f}", "under 5")
    return {**found, "samples": samples}


def callers(count: int, *more: Contender, aim: float | None = None) -> Any:
    name = f"counterfoil, {count} asyncio callers"
    contenders = [Contender("group commit, two per effect", raw.group(count), count)]
    contenders += [Contender(name, ours.looped(count), count), *more]
    return compared(contenders, base="that floor", aims={} if aim is None else {name: aim}, rounds=16)


def parts(grown: int) -> dict[str, Callable[..., dict[str, Any]]]:
    return {**PARTS, **postgres.parts(grown), **outbox.parts(grown), **jetstream.parts(), **blobs.parts()}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "one caller": compared(
        [
            Contender("two raw commits per effect", raw.group(1)),
            Contender("counterfoil, blocking", ours.blocking()),
            Contender("counterfoil, blocking, with a request", ours.blocking(request=ours.REQUEST)),
            Contender("counterfoil, asyncio", ours.looped(1)),
            Contender("counterfoil, asyncio, sync handler", ours.looped(1, sync_handler=True)),
            Contender("counterfoil, blocking, runs of 1,000", ours.blocking(run_size=1000)),
            Contender("agent-once", peers.agent_once(1)),
            Contender("effect-ledger", peers.effect_ledger(1)),
            Contender("DBOS, a step", peers.dbos(1)),
            Contender("LangGraph SQLite saver, a super-step", peers.langgraph(1)),
        ],
        base="two raw commits",
        aims={"counterfoil, blocking": 0.85, "counterfoil, asyncio": 0.45},
        rounds=24,
    ),
    "8 callers": callers(8, aim=0.35),
    "64 callers": callers(
        64,
        Contender("counterfoil, 64, with a request", ours.looped(64, request=ours.REQUEST), 64),
        Contender("counterfoil, 64, sync handler", ours.looped(64, sync_handler=True), 64),
        Contender("counterfoil, 64, runs of 1,000", ours.looped(64, run_size=1000), 64),
        Contender("counterfoil, 64, names far apart", ours.looped(64, apart=True), 64),
        Contender("agent-once", peers.agent_once(64), 64),
        Contender("effect-ledger", peers.effect_ledger(64), 64),
        Contender("DBOS, a step", peers.dbos(64), 64),
        Contender("LangGraph SQLite saver, a super-step", peers.langgraph(64), 64),
        aim=0.30,
    ),
    "256 callers": callers(256, aim=0.25),
    "threads": compared(
        [
            Contender("group commit, two per effect", raw.group(16), 16),
            Contender("counterfoil, 16 threads", ours.threads(16), 16),
        ],
        base="that floor",
        aims={},
        rounds=16,
    ),
    "replay": replayed,
    "footprint": measured,
    "endurance": lived,
}


if __name__ == "__main__":
    main()

"""`counterfoil demo`: kill a worker, restart it, count what the recipient got, and say what nobody can know."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click

from counterfoil.cli.demo.body import EVENT, ask
from counterfoil.cli.demo.lanes import ORDERS_MIN, Lane, payee, points
from counterfoil.cli.demo.report import Result, write
from counterfoil.cli.output import document, say
from counterfoil.errors import CounterfoilError, UsageError
from counterfoil.protocol.checker import Checker, Item
from counterfoil.runtime.sync import Runtime

TICK_S: Final = 0.01
# Some deliveries come before the order waits for them, some while it does.
DELIVER_AFTER_S: Final = (0.05, 0.3)
GIVE_UP_S: Final = 300.0


@click.command()
@click.option("--seed", type=int, help="Choose the same points again.")
@click.option("--kills", type=click.IntRange(0, 500), default=25, show_default=True)
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), help="Where the files go; it must be empty."
)
@click.option("--keep/--no-keep", default=True, show_default=True, help="Keep the folder, to look further.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def demo(*, seed: int | None, kills: int, folder: Path | None, keep: bool, as_json: bool) -> None:
    """Watch a worker survive kill -9 without sending anything twice.

    A worker serves orders: it charges a card, mails a receipt and opens a door, each at a recipient in a
    process of its own. It is killed with SIGKILL at points chosen by the seed and started again. Beside it
    runs the same body without a ledger, killed at the same points. The exit code is 1 if ours sent anything
    twice or lost it.
    """
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    place = _folder(folder)
    say(f"seed {seed}, {kills} kills; files in {place}")
    began = time.monotonic()
    lanes: list[Lane] = []
    try:
        with _terminated():
            result = _run(place, lanes, seed=seed, kills=kills)
        result.took_s = time.monotonic() - began
        result.kept = keep
        if as_json:
            document(result.shape())
        else:
            write(result)
    except KeyboardInterrupt:
        count = lanes[0].kills if lanes else 0
        kept = f"files kept in {place}" if keep else "its files are removed"
        say(f"stopped after {count} kill{'' if count == 1 else 's'}; {kept}")
        raise
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)
    click.get_current_context().exit(1 if result.wrong else 0)


def _folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="counterfoil-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", hint="name a new folder")
    return folder.resolve()


@contextmanager
def _terminated() -> Generator[None]:
    """Take SIGTERM like Ctrl-C, so that all processes are ended."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(folder: Path, lanes: list[Lane], *, seed: int, kills: int) -> Result:
    planned = points(seed, kills)
    with ExitStack() as stack:
        port = stack.enter_context(payee(folder))
        lanes += [Lane(side, folder, port=port, planned=planned) for side in ("ours", "naive")]
        for lane in lanes:
            stack.callback(lane.stop)
        runtime = stack.enter_context(Runtime(f"sqlite:///{folder / 'ledger.db'}", owner="demo packer"))
        _drive(runtime, lanes, kills)
        items = ask(port, "GET", "log")["items"]
        log = [{"key": i["key"], "item": i["id"], "what": "created"} for i in items if i["key"].startswith("cf-")]
        (folder / "payee.jsonl").write_text("".join(json.dumps(each) + "\n" for each in log), encoding="utf-8")
        checker = Checker(runtime.namespace, [Item(each["key"], each["item"]) for each in log])
        runs = runtime.runs()
        findings = [
            found
            for view in runs
            for found in checker.run(view.run_id, runtime.ledger.read(runtime.namespace, view.run_id))
        ]
        return Result(
            folder=folder,
            seed=seed,
            kills=lanes[0].kills,
            naive_kills=lanes[1].kills,
            orders=[view.run_id for view in runs],
            naive_orders=lanes[1].begun,
            unfinished=[view.run_id for view in runs if view.state != "finished"],
            items=items,
            effects=runtime.effects(),
            timelines={view.run_id: runtime.show(view.run_id) for view in runs},
            findings=findings + checker.rest(),
        )


def _drive(runtime: Runtime, lanes: list[Lane], kills: int) -> None:
    """Let both workers be killed and restarted until they are done, and deliver what the orders wait for."""
    give_up = time.monotonic() + GIVE_UP_S
    delivered: dict[str, float] = {}
    with _progress(lanes, kills) as tell:
        while not all(lane.done for lane in lanes):
            for lane in lanes:
                lane.poll()
            if all(lane.survived for lane in lanes) and not lanes[0].until:
                # Both serve as many orders, so that their counts can be compared.
                for lane in lanes:
                    lane.until = max(ORDERS_MIN, *(len(lane.begun) for lane in lanes))
            now = time.monotonic()
            for number, order_id in enumerate(lanes[0].begun):
                due = delivered.setdefault(order_id, now + DELIVER_AFTER_S[number % 2])
                if now >= due > 0:
                    runtime.deliver(order_id, EVENT, order_id, {"by": "the packer"})
                    delivered[order_id] = -1.0
            tell()
            if now > give_up:
                raise CounterfoilError(f"the demo was not done after {GIVE_UP_S:g} s")
            time.sleep(TICK_S)


@contextmanager
def _progress(lanes: list[Lane], kills: int) -> Generator[Callable[[], None]]:
    if not sys.stderr.isatty():
        told = {lane.side: 0 for lane in lanes}

        def tell() -> None:
            for lane in lanes:
                if lane.kills >= told[lane.side] + 5:
                    told[lane.side] = lane.kills
                    say(f"{_NAMES[lane.side]}: killed {lane.kills} of {kills} times, at order {len(lane.begun)}")

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    parts = (
        TextColumn("{task.description:16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("kills, at order {task.fields[order]}"),
    )
    with Progress(*parts, console=Console(stderr=True), transient=True) as progress:
        tasks = {lane.side: progress.add_task(_NAMES[lane.side], total=kills, order=1) for lane in lanes}

        def show() -> None:
            for lane in lanes:
                progress.update(tasks[lane.side], completed=lane.kills, order=len(lane.begun))

        yield show


_NAMES: Final = {"ours": "with a ledger", "naive": "without"}

"""`python -m benchmarks.http`: immediate HTTP operations beside the same requests through httpx2.

Both open a connection for each request, because mutations must: the connection policy is the same, the server is the
same, in a process of its own, and each contender takes its slice in every round. Ours also checks grants, spends a
budget, takes a permit through its gate and makes evidence.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import Contender, Result, Slice, race
from counterfoil import HTTP, Accepted, AsyncBroker, AsyncRuntime, Broker, Budget, Grant

ANSWER = b'HTTP/1.1 201 Created\r\nContent-Length: 13\r\nConnection: close\r\n\r\n{"id":"ch_1"}'
BODY = {"cents": 700, "currency": "eur", "reference": "order-42"}
CALLERS = 64
ACTIVATIONS = 10_000
AIMS = {"one caller": 0.8, "64 asyncio callers": 0.7}


def serve(ready: Any) -> None:
    """Answer every request on a port of the kernel's choice, for ever."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
            )
            await reader.readexactly(length)
            writer.write(ANSWER)
            await writer.drain()
            writer.close()
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def server() -> Iterator[str]:
    """Start the server in a process of its own; gives its URL."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join()


def grant(url: str) -> Grant:
    return Grant("payments", operations=("POST",), targets=(f"{url}/v1/",), allow_addresses=("127.0.0.1/32",))


def checked(outcome: Any) -> None:
    assert isinstance(outcome, Accepted), outcome


# --- one caller


def httpx2_alone(url: str) -> Callable[[str], Any]:
    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        import httpx2

        limits = httpx2.Limits(max_keepalive_connections=0)
        with httpx2.Client(base_url=url, limits=limits, trust_env=False) as client:

            def slice_(count: int) -> None:
                for _ in range(count):
                    assert client.post("/v1/charges", json=BODY).status_code == 201

            yield slice_

    return opened


def ours_alone(url: str) -> Callable[[str], Any]:
    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        http = HTTP("payments", base_url=f"{url}/v1")
        budget = Budget(calls=10**9, bytes_out=10**12, bytes_in=10**12, in_flight=4)
        with Broker() as broker, broker.activation(grants=[grant(url)], budget=budget, deadline_s=3600) as activation:

            def slice_(count: int) -> None:
                for _ in range(count):
                    checked(activation.perform(http.post("/charges", json=BODY)))

            yield slice_

    return opened


# --- many callers on a loop


class Loop:
    """A loop in a thread of its own, for contenders whose slices are called from outside."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


async def shared(one: Callable[[], Any], count: int) -> None:
    """Let CALLERS callers do `count` calls between them."""
    left = iter(range(count))

    async def caller() -> None:
        for _ in left:
            await one()

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


def httpx2_many(url: str) -> Callable[[str], Any]:
    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        import httpx2

        loop = Loop()
        limits = httpx2.Limits(max_keepalive_connections=0, max_connections=CALLERS)
        client = httpx2.AsyncClient(base_url=url, limits=limits, trust_env=False, timeout=30)

        async def one() -> None:
            assert (await client.post("/v1/charges", json=BODY)).status_code == 201

        yield lambda count: loop.run(shared(one, count))
        loop.run(client.aclose())
        loop.close()

    return opened


def ours_many(url: str, *, audit: str = "off") -> Callable[[str], Any]:
    @contextmanager
    def opened(folder: str) -> Iterator[Slice]:
        Path(folder).mkdir(parents=True, exist_ok=True)
        loop, entered = Loop(), []
        http = HTTP("payments", base_url=f"{url}/v1")
        budget = Budget(calls=10**9, bytes_out=10**12, bytes_in=10**12, in_flight=CALLERS)

        async def enter() -> Any:
            runtime = None
            if audit != "off":
                runtime = AsyncRuntime(f"sqlite:///{folder}/audit.db")
                entered.append(await runtime.__aenter__() and runtime)
            broker = AsyncBroker(runtime, audit=audit, concurrency=CALLERS)
            activation = broker.activation(grants=[grant(url)], budget=budget, deadline_s=3600)
            await activation.__aenter__()
            entered.extend((broker, activation))
            return activation

        async def leave() -> None:
            for thing in reversed(entered):
                await thing.__aexit__(None, None, None)

        activation = loop.run(enter())

        async def one() -> None:
            checked(await activation.perform(http.post("/charges", json=BODY)))

        yield lambda count: loop.run(shared(one, count))
        loop.run(leave())
        loop.close()

    return opened


# --- many activations


async def crowd(url: str) -> float:
    """Open ACTIVATIONS activations at once, perform one call in each, and say how much memory that took, in MB."""
    http = HTTP("payments", base_url=f"{url}/v1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    broker = AsyncBroker(concurrency=CALLERS)

    async def one() -> None:
        async with broker.activation(grants=[grant(url)], deadline_s=600) as activation:
            checked(await activation.perform(http.post("/charges", json=BODY)))

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(ACTIVATIONS)))
    took_s = time.perf_counter() - began
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{ACTIVATIONS:,} activations at once: {grown_mb:.0f} MB more at the peak, {took_s:.1f} s")
    return grown_mb


def show(title: str, results: list[Result]) -> None:
    print(title)
    base = results[0]
    for result in results:
        if result.trouble is not None:
            print(f"  {result.name:<28} {result.trouble}")
        elif base.trouble is None:
            aim = f"   aim {AIMS[title]}" if result is not base and title in AIMS and "audit" not in result.name else ""
            print(f"  {result.name:<28} {result.rate:>8,.0f}/s   ratio {result.ratio(base):.2f}{aim}")
        else:
            print(f"  {result.name:<28} {result.rate:>8,.0f}/s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="counterfoil-bench-http-")
    try:
        with server() as url:
            alone = [Contender("httpx2", httpx2_alone(url)), Contender("counterfoil", ours_alone(url))]
            show("one caller", race(alone, f"{folder}/alone", rounds=chosen.rounds, slice_s=0.2))
            many = [
                Contender("httpx2", httpx2_many(url), step=CALLERS),
                Contender("counterfoil", ours_many(url), step=CALLERS),
                Contender("counterfoil, audit required", ours_many(url, audit="required"), step=CALLERS),
            ]
            show(f"{CALLERS} asyncio callers", race(many, f"{folder}/many", rounds=chosen.rounds, slice_s=0.3))
            asyncio.run(crowd(url))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Queues in PostgreSQL, each as its documentation uses it: what is enqueued before, and drained in one process.

They promise less: a worker that dies in the middle of a task leaves it to be run again, and no right to send is
recorded before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from benchmarks.measure import Opened, Slice, Watch, watching

BATCH = 100
_ENQUEUED_AT_ONCE = 500


def pages(numbers: count[int], tasks: int) -> Iterator[list[int]]:
    """So many numbers, in pages."""
    for start in range(0, tasks, _ENQUEUED_AT_ONCE):
        yield [next(numbers) for _ in range(min(_ENQUEUED_AT_ONCE, tasks - start))]


def pgqueuer(url: str) -> Opened:
    """`QueueManager.run` with `mode=drain`, through asyncpg, the faster of its drivers."""

    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        import asyncpg
        from pgqueuer import AsyncpgDriver, Queries, QueueManager
        from pgqueuer.types import QueueExecutionMode

        logging.getLogger("pgqueuer").setLevel(logging.ERROR)
        numbers, done = count(), [0]
        with asyncio.Runner() as runner:
            connection = runner.run(asyncpg.connect(url))
            queries = Queries(AsyncpgDriver(connection))
            runner.run(queries.install())

            async def drained(tasks: int) -> Watch:
                for page in pages(numbers, tasks):
                    await queries.enqueue(["noop"] * len(page), [b"%d" % number for number in page], [0] * len(page))
                manager = QueueManager(queries)

                @manager.entrypoint("noop")
                async def noop(_job: object) -> None:
                    done[0] += 1

                before = done[0]
                with watching() as watch:
                    await manager.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
                assert done[0] - before == tasks, (done[0] - before, tasks)
                return watch

            yield lambda tasks: runner.run(drained(tasks))
            runner.run(connection.close())

    return opened


def procrastinate(url: str) -> Opened:
    """`run_worker_async` with `wait=False` and as many tasks at once as a batch has."""

    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        from procrastinate import App, PsycopgConnector

        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        numbers, done = count(), [0]
        app = App(connector=PsycopgConnector(conninfo=url))

        @app.task
        async def noop(number: int) -> None:  # noqa: ARG001
            done[0] += 1

        with asyncio.Runner() as runner:

            async def prepared() -> None:
                await app.open_async()
                await app.schema_manager.apply_schema_async()

            async def drained(tasks: int) -> Watch:
                for page in pages(numbers, tasks):
                    await noop.batch_defer_async(*[{"number": number} for number in page])
                before = done[0]
                with watching() as watch:
                    await app.run_worker_async(wait=False, concurrency=BATCH, install_signal_handlers=False)
                assert done[0] - before == tasks, (done[0] - before, tasks)
                return watch

            runner.run(prepared())
            yield lambda tasks: runner.run(drained(tasks))
            runner.run(app.connector.close_async())

    return opened

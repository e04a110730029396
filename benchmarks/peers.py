"""Other libraries, each as its documentation uses it on SQLite: one durable effect or step per call.

They promise different things. `agent-once` and `effect-ledger` record a claim before the call and the result after
it, as an effect does. DBOS and LangGraph record a result after the step: half of the commits, and a crash in
between runs the step again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypedDict

from benchmarks.measure import Opened, Slice


async def _gathered(callers: int, one: Any) -> None:
    await asyncio.gather(*(one(place) for place in range(callers)))


def agent_once(callers: int) -> Opened:
    """`Once.execute`, or `aexecute` with several callers."""

    @contextmanager
    def opened(folder: str) -> Iterator[Slice]:
        from once import Once

        Path(folder).mkdir(parents=True)
        once, numbers = Once(f"{folder}/once.db", busy_timeout=30.0), count()

        def charge(number: int) -> int:
            return number

        async def acharge(number: int) -> int:
            return number

        def alone(effects: int) -> None:
            for number in (next(numbers) for _ in range(effects)):
                once.execute(charge, scope="r", number=number)

        async def together(effects: int) -> None:
            async def one(_place: int) -> None:
                for number in (next(numbers) for _ in range(effects // callers)):
                    await once.aexecute(acharge, scope="r", number=number)

            await _gathered(callers, one)

        with asyncio.Runner() as runner:
            yield alone if callers == 1 else lambda effects: runner.run(together(effects))
        once.close()

    return opened


def effect_ledger(callers: int) -> Opened:
    """`EffectExecutor.execute`, or `aexecute` with several callers."""

    @contextmanager
    def opened(folder: str) -> Iterator[Slice]:
        from effect_ledger import EffectExecutor

        Path(folder).mkdir(parents=True)
        executor, numbers = EffectExecutor(f"{folder}/effects.db", scope="r"), count()

        async def handler(_operation: Any) -> int:
            return 1

        def alone(effects: int) -> None:
            for number in (next(numbers) for _ in range(effects)):
                executor.execute(f"e{number}", "charge", {}, lambda _operation: 1)

        async def together(effects: int) -> None:
            async def one(_place: int) -> None:
                for number in (next(numbers) for _ in range(effects // callers)):
                    await executor.aexecute(f"e{number}", "charge", {}, handler)

            await _gathered(callers, one)

        with asyncio.Runner() as runner:
            yield alone if callers == 1 else lambda effects: runner.run(together(effects))

    return opened


_launched = count()


def dbos(callers: int, *, url: str | None = None) -> Opened:
    """Steps of one workflow per caller and slice; on SQLite, or where a URL says."""

    @contextmanager
    def opened(folder: str) -> Iterator[Slice]:
        from dbos import DBOS

        Path(folder).mkdir(parents=True)
        number = next(_launched)
        DBOS(
            config={
                "name": "bench",
                "system_database_url": url or f"sqlite:///{folder}/dbos.db",
                "log_level": "ERROR",
            }
        )

        @DBOS.step(name=f"step{number}")
        def step() -> int:
            return 1

        @DBOS.workflow(name=f"workflow{number}")
        def workflow(effects: int) -> None:
            for _ in range(effects):
                step()

        @DBOS.step(name=f"astep{number}")
        async def astep() -> int:
            return 1

        @DBOS.workflow(name=f"aworkflow{number}")
        async def aworkflow(effects: int) -> int:
            done = 0
            for _ in range(effects):
                done += await astep()
            return done

        async def together(effects: int) -> None:
            await _gathered(callers, lambda _place: aworkflow(effects // callers))

        DBOS.launch()
        logging.getLogger("dbos").setLevel(logging.ERROR)
        try:
            with asyncio.Runner() as runner:
                yield workflow if callers == 1 else lambda effects: runner.run(together(effects))
        finally:
            DBOS.destroy()

    return opened


class _State(TypedDict):
    left: int


def langgraph(callers: int) -> Opened:
    """Super-steps of one graph per caller and slice, checkpointed with `durability="sync"`."""

    @contextmanager
    def opened(folder: str) -> Iterator[Slice]:
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
        from langgraph.graph import END, START, StateGraph

        Path(folder).mkdir(parents=True)
        path, threads = f"{folder}/graph.db", count()

        def node(state: _State) -> _State:
            return {"left": state["left"] - 1}

        async def anode(state: _State) -> _State:
            return {"left": state["left"] - 1}

        def built(call: Any, saver: Any) -> Any:
            graph = StateGraph(_State)
            graph.add_node("step", call)
            graph.add_edge(START, "step")
            graph.add_conditional_edges("step", lambda state: "step" if state["left"] else END)
            return graph.compile(checkpointer=saver)

        def config(steps: int) -> Any:
            return {"configurable": {"thread_id": str(next(threads))}, "recursion_limit": steps + 5}

        if callers == 1:
            with SqliteSaver.from_conn_string(path) as saver:
                graph = built(node, saver)
                yield lambda effects: graph.invoke({"left": effects}, config(effects), durability="sync")
            return
        with asyncio.Runner() as runner:
            opening = AsyncSqliteSaver.from_conn_string(path)
            agraph = built(anode, runner.run(opening.__aenter__()))

            async def together(effects: int) -> None:
                each = effects // callers
                await _gathered(callers, lambda _: agraph.ainvoke({"left": each}, config(each), durability="sync"))

            yield lambda effects: runner.run(together(effects))
            runner.run(opening.__aexit__(None, None, None))

    return opened

"""An async handler answers in its own last step, and where it has none."""

import asyncio
import gc

import pytest

from counterfoil import UNASKABLE, AsyncRuntime, EffectUnresolved, Uncertain
from counterfoil.protocol.requests import Call


@pytest.mark.rule("E3", "E10")
async def test_a_task_that_is_cancelled_before_its_first_step_leaves_the_intent_and_no_waiting_caller():
    called = []

    async def send():
        called.append("sent")

    async with AsyncRuntime("memory:") as runtime, runtime.run("r") as run:
        driver = runtime._driver

        def cancel():
            for task in driver.tasks:
                task.cancel()

        def watch(moment, _run, request):
            if moment == "before" and isinstance(request, Call):
                asyncio.get_running_loop().call_soon(cancel)

        driver.watch = watch
        async with asyncio.timeout(60):
            with pytest.raises(EffectUnresolved) as failed:
                await run.effect("a", run=send, reconcile=UNASKABLE)
        assert (failed.value.reason, called) == ("run-failed", [])
        assert not driver.tasks
        driver.watch = None
        assert isinstance(await run.effect("a", run=send, reconcile=UNASKABLE), Uncertain)
        assert called == []


def asked() -> list[object]:
    """The calls of handlers that are somewhere in this process."""
    return [one for one in gc.get_objects() if type(one).__name__ == "Asked"]


@pytest.mark.rule("E10")
async def test_a_handler_that_ended_leaves_no_task_and_no_circle():
    async def send():
        await asyncio.sleep(0)
        return 1

    async with AsyncRuntime("memory:") as runtime, runtime.run("r") as run:
        await run.effect("first", run=send, reconcile=UNASKABLE)
        gc.collect()
        gc.disable()
        others = asked()
        try:
            await run.effect("second", run=send, reconcile=UNASKABLE)
            await asyncio.sleep(0)
            assert not runtime._driver.tasks
            assert [one for one in asked() if one not in others] == []
        finally:
            gc.enable()

"""One call of one handler of the user on a loop: a task for an async one, a worker thread for a sync one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextvars import Context as ContextVars
from functools import partial
from typing import TYPE_CHECKING, Any

from counterfoil import threads
from counterfoil.protocol.requests import Call, Overran, Raised, Reply, Returned
from counterfoil.runtime.handlers import Context, arguments, inside, is_async

if TYPE_CHECKING:
    from counterfoil.runtime.looped import Flight, LoopDriver


class Asked:
    """A handler that was called for a flow, and will answer it.

    Args:
        driver: the loop's driver.
        flight: the flow that waits for the answer.
        request: what it asked for.
    """

    __slots__ = ("_context", "_driver", "_flight", "_request", "_serial", "_task", "_variables")

    def __init__(self, driver: LoopDriver, flight: Flight, request: Call) -> None:
        self._driver = driver
        self._flight = flight
        self._serial = flight.serial
        self._request = request
        timeout_s = request.timeout_s
        deadline = None if timeout_s is None else driver.loop.time() + timeout_s
        self._context = Context(request.key, request.attempt, deadline)
        self._variables: ContextVars = flight.variables.copy()
        self._variables.run(inside.set, flight.chain)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Call the handler; its answer comes later, also when that is at once."""
        request = self._request
        handler = request.handler
        given = arguments(handler, request.proof, self._context) if request.told else request.proof
        self._driver.session.retain(self)
        if is_async(handler):
            self._as_task(_called(handler, given))
        else:
            threads.submit(partial(self._in_thread, handler, given))
        if request.timeout_s is not None:
            self._driver.loop.call_later(request.timeout_s, self._overdue)

    def over(self, reply: Reply) -> None:
        """Answer the flow, in the task of an async handler."""
        driver, task = self._driver, self._task
        self._task = None  # it holds this: no circle is left to the collector
        driver.tasks.discard(task)
        driver.session.release(self, on_loop=True)
        self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        self._driver.answer(self._flight, self._serial, self._request, answer=reply)

    def _overdue(self) -> None:
        if self._flight.flow is not None and self._flight.serial == self._serial:
            self._context.cancel()
            if self._task is not None:
                self._task.cancel()
            self._answer(Overran())

    def _as_task(self, coroutine: Coroutine[Any, Any, Reply]) -> None:
        driver = self._driver
        answering = _Answering(coroutine, self)
        self._task = driver.loop.create_task(answering, name="counterfoil handler", context=self._variables)
        driver.tasks.add(self._task)

    def _in_thread(self, handler: Callable[..., Any], given: tuple[Any, ...]) -> None:
        driver = self._driver
        try:
            value = self._variables.run(handler, *given)
        except BaseException as error:  # noqa: BLE001 - it is the flow's to judge
            driver.to_loop(self._answer, Raised(error))
        else:
            if inspect.isawaitable(value):
                # A lambda that returns a coroutine: the call was for the thread, the coroutine is for the loop.
                driver.to_loop(self._as_task, _given(value))
                return
            driver.to_loop(self._answer, Returned(value))
        driver.session.release(self)


class _Answering(Coroutine[Any, Any, None]):
    """A handler's coroutine that answers when it ends, in its own last step.

    A task's callback would come a turn of the loop later; and behind an `await`, not where the task was cancelled
    before its first step.
    """

    __slots__ = ("_asked", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Reply], asked: Asked) -> None:
        self._coroutine = coroutine
        self._asked = asked

    def send(self, value: Any) -> Any:
        try:
            return self._coroutine.send(value)
        except StopIteration as ended:
            reply = ended.value
        except asyncio.CancelledError as error:
            reply = Raised(error)
        self._asked.over(reply)
        raise StopIteration

    def throw(self, *error: Any) -> Any:
        try:
            return self._coroutine.throw(*error)
        except StopIteration as ended:
            reply = ended.value
        except asyncio.CancelledError as cancelled:
            reply = Raised(cancelled)
        self._asked.over(reply)
        raise StopIteration

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return self


async def _called(handler: Callable[..., Any], given: tuple[Any, ...]) -> Reply:
    try:
        return Returned(await handler(*given))
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt out of a task would end the loop
        return Raised(error)


async def _given(value: Any) -> Reply:
    async def wait() -> Any:
        return await value

    return await _called(wait, ())

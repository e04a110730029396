"""Handlers and operations: what they are called with, in both colours; how a recipient is written down once."""

import asyncio
import functools
import threading
from typing import Any

import pytest

from counterfoil import UNASKABLE, Accepted, EffectUnresolved, Recipient, Uncertain, UsageError
from tests.support import BLOCKING, IN_MEMORY

pytestmark = IN_MEMORY


class Caller:
    def __call__(self, ctx: Any) -> Any:
        return ctx.key


class AsyncCallable:
    async def __call__(self, ctx: Any) -> Any:
        return ctx.key


class Methods:
    def with_context(self, ctx: Any) -> Any:
        return ctx.key

    def without(self) -> str:
        return "nothing"

    @classmethod
    def of_class(cls, ctx: Any) -> Any:
        return ctx.key

    @staticmethod
    def static(ctx: Any) -> Any:
        return ctx.key

    async def asynchronous(self, ctx: Any) -> Any:
        return ctx.key


def two(ctx: Any, extra: str) -> str:
    return f"{ctx.key}-{extra}"


async def coroutine(ctx: Any) -> Any:
    await asyncio.sleep(0)
    return ctx.key


async def coroutine_without() -> str:
    return "nothing"


@functools.wraps(coroutine)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return coroutine(*args, **kwargs)


KEY = "the key"
HANDLERS = {
    "function": (lambda ctx: ctx.key, KEY),
    "positional only": (eval("lambda ctx, /: ctx.key"), KEY),
    "no parameter": (lambda: "nothing", "nothing"),
    "default": (lambda key="mine": key, "mine"),
    "required and default": (lambda ctx, key="mine": ctx.key + key, KEY + "mine"),
    "only keywords": (lambda *, key="mine": key, "mine"),
    "any arguments": (lambda *args, **kwargs: len(args) + len(kwargs), 0),
    "method": (Methods().with_context, KEY),
    "method without": (Methods().without, "nothing"),
    "class method": (Methods.of_class, KEY),
    "static method": (Methods.static, KEY),
    "async method": (Methods().asynchronous, KEY),
    "partial by name": (functools.partial(two, extra="x"), KEY + "-x"),
    "partial by position": (functools.partial(two, type("C", (), {"key": "given"})(), "x"), "given-x"),
    "object": (Caller(), KEY),
    "async object": (AsyncCallable(), KEY),
    "coroutine function": (coroutine, KEY),
    "coroutine function without": (coroutine_without, "nothing"),
    "lambda with a coroutine": (lambda ctx: coroutine(ctx), KEY),  # noqa: PLW0108
    "lambda with a coroutine, without": (lambda: coroutine_without(), "nothing"),  # noqa: PLW0108
    "wrapped": (wrapped, KEY),
    "builtin without a signature": (dict, {}),
    "builtin": (list, []),
    "type": (str, ""),
}


@pytest.mark.rule("E11")
@pytest.mark.parametrize(("handler", "expected"), HANDLERS.values(), ids=HANDLERS.keys())
async def test_a_handler_gets_the_context_exactly_when_it_requires_one_parameter(make, handler, expected):
    async with make() as life, life.run("r") as run:
        outcome = await run.effect("pay", run=handler, reconcile=UNASKABLE)
        key = (await life.effects())[0].effect_key
        wanted = expected.replace(KEY, key) if isinstance(expected, str) else expected
        assert outcome == Accepted(wanted, "run")


@pytest.mark.parametrize(("handler", "expected"), HANDLERS.values(), ids=HANDLERS.keys())
async def test_the_same_holds_for_a_look_up(make, colour, payee, handler, expected):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.refuse), reconcile=payee.never)
        outcome = await run.effect("pay", run=payee.never, reconcile=handler)
        wanted = expected.replace(KEY, payee.requests[0]) if isinstance(expected, str) else expected
        assert outcome == Accepted(wanted, "reconcile")


@pytest.mark.parametrize("kind", ["function", "coroutine function", "no parameter"])
async def test_a_steps_body_may_take_a_context_too(make, kind):
    handler, expected = HANDLERS[kind]
    async with make() as life, life.run("r") as run:
        # A step has no identity at a recipient, so the key is empty.
        assert await run.step("sum", handler) == ("" if expected == KEY else expected)


async def test_a_context_says_which_attempt_it_is_and_that_run_has_no_deadline(make):
    seen: list[Any] = []
    async with make() as life, life.run("r") as run:
        await run.effect("pay", run=lambda ctx: seen.append(ctx), reconcile=UNASKABLE)  # noqa: PLW0108
    (ctx,) = seen
    assert (ctx.attempt, ctx.deadline, ctx.cancelled) == (1, None, False)
    assert ctx.key in repr(ctx)


@BLOCKING
@pytest.mark.rule("E7")
async def test_an_async_handler_of_a_blocking_runtime_runs_beside_a_loop_of_the_callers(make):
    """The caller's thread has a running loop; the coroutine runs on another one."""
    here = threading.current_thread()
    seen: list[threading.Thread] = []

    async def pay() -> str:
        seen.append(threading.current_thread())
        await asyncio.sleep(0)
        return "x"

    async with make() as life, life.run("r") as run:
        assert (await run.effect("pay", run=pay, reconcile=UNASKABLE)).proof == "x"
    assert seen != [here]


async def test_context_variables_of_the_caller_reach_the_handlers(make, colour):
    from contextvars import ContextVar

    name: ContextVar[str] = ContextVar("name", default="nobody")
    name.set("ada")

    async def coroutine() -> str:
        return name.get()

    async with make() as life, life.run("r") as run:
        assert (await run.effect("sync", run=lambda: name.get(), reconcile=UNASKABLE)).proof == "ada"  # noqa: PLW0108
        assert (await run.effect("async", run=coroutine, reconcile=UNASKABLE)).proof == "ada"


@pytest.mark.parametrize("where", ["run", "reconcile", "body"])
async def test_a_handler_that_raises_stop_iteration_confuses_nobody(make, colour, payee, where):
    def stop() -> None:
        raise StopIteration(7)

    async with make() as life, life.run("r") as run:
        if where == "body":
            with pytest.raises((RuntimeError, StopIteration)):
                await run.beside.step("sum", stop)
            return
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=stop if where == "run" else payee.pay_and_drop, reconcile=payee.never)
        if where == "reconcile":
            with pytest.raises(EffectUnresolved):
                await run.effect("pay", run=payee.never, reconcile=stop)


# --- operations


def recipient(payee: Any, **settings: Any) -> tuple[Recipient, Any]:
    mail = Recipient("mail")

    @mail.operation(**settings)
    def send(ctx: Any, to: str, *, subject: str = "none") -> dict[str, str]:
        """Send one."""
        return {"id": payee.pay(ctx), "to": to, "subject": subject}

    return mail, send


def async_recipient(payee: Any, **settings: Any) -> tuple[Recipient, Any]:
    mail = Recipient("mail")

    @mail.operation(**settings)
    async def send(ctx: Any, to: str, *, subject: str = "none") -> dict[str, str]:
        """Send one."""
        await asyncio.sleep(0)
        return {"id": payee.pay(ctx), "to": to, "subject": subject}

    return mail, send


@pytest.fixture(params=[recipient, async_recipient], ids=["sync", "async"])
def declared(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_an_operation_serves_both_colours(make, payee, declared):
    mail, send = declared(payee)
    send.reconcile(lambda ctx, to, subject: None)
    async with make() as life, life.run("r") as run:
        outcome = await run.effect("mail", send("a@example.org", subject="hi"))
        assert outcome == Accepted({"id": "item-1", "to": "a@example.org", "subject": "hi"}, "run")
    assert send.__doc__ == "Send one."
    assert mail.operations == {"send": send}
    assert repr(mail) == "Recipient('mail')"


@pytest.mark.rule("E12")
async def test_the_arguments_are_the_request_defaults_included(make, payee, declared):
    from counterfoil import NameConflict

    _, send = declared(payee, reconcile=UNASKABLE)
    async with make() as life, life.run("r") as run:
        await run.effect("mail", send("a"))
        await run.effect("mail", send(to="a", subject="none"))
        for other in (send("b"), send("a", subject="other")):
            with pytest.raises(NameConflict):
                await run.effect("mail", other)
    assert payee.sends == 1


async def test_a_look_up_gets_the_arguments_and_the_context_by_its_parameters_name(make, payee, colour):
    mail = Recipient("mail")
    asked: list[Any] = []

    @mail.operation
    def send(to: str) -> str:
        raise ConnectionError

    @send.reconcile
    def find(context: Any, to: str) -> str:
        asked.append((context.key, context.deadline, to))
        return "found"

    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("mail", send("a"))
        assert await run.effect("mail", send("a")) == Accepted("found", "reconcile")
        (view,) = await life.effects()
    assert asked[0][0] == view.effect_key
    assert asked[0][2] == "a"


async def test_an_operation_that_nobody_said_how_to_ask_about_is_refused_before_anything_is_sent(make, payee, declared):
    _, send = declared(payee)
    async with make() as life, life.run("r") as run:
        with pytest.raises(UsageError):
            await run.effect("mail", send("a"))
        assert life.records() == []
    assert payee.sends == 0


async def test_an_operation_may_be_unaskable(make):
    mail = Recipient("mail")

    @mail.operation(reconcile=UNASKABLE)
    def send() -> None:
        raise ConnectionError

    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("mail", send())
        assert isinstance(await run.effect("mail", send()), Uncertain)


@pytest.mark.rule("E9")
@pytest.mark.parametrize(("declared_s", "given_s"), [(10, 0), (0, 10), (10, 3), (3, 10)])
async def test_the_larger_visibility_of_operation_and_call_counts(make, payee, clock, declared_s, given_s):
    mail = Recipient("mail")

    @mail.operation(visibility=declared_s)
    def send() -> None:
        raise ConnectionError

    send.reconcile(lambda: None)
    async with make(clock=clock) as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("mail", send(), visibility=given_s)
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("mail", send())
        assert raised.value.retry_after_s == pytest.approx(10)


@pytest.mark.rule("E19")
async def test_an_operations_verify_holds_for_its_effects(make, payee):
    mail = Recipient("mail")

    @mail.operation
    def send(ctx: Any) -> dict[str, str]:
        return {"for": "somebody else"}

    @send.reconcile
    def find(ctx: Any) -> dict[str, str]:
        return {"for": ctx.key}

    @send.verify
    def ours(proof: dict[str, str], ctx: Any) -> Any:
        return proof["for"] == ctx.key

    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("mail", send())
        assert raised.value.reason == "proof-rejected"
        outcome = await run.effect("mail", send())
        assert outcome == Accepted({"for": (await life.effects())[0].effect_key}, "reconcile")


async def test_wrong_uses_of_operations_say_what_to_do(make, payee):
    mail, send = recipient(payee, reconcile=UNASKABLE)
    with pytest.raises(UsageError):
        send()
    with pytest.raises(UsageError):
        send("a", "b", "c")
    with pytest.raises(UsageError):
        send(ctx="mine", to="a")
    with pytest.raises(UsageError):
        mail.operation(send.function)
    with pytest.raises(UsageError):
        mail.operation(visibility=-1)(lambda: None)
    with pytest.raises(UsageError):
        Recipient("")
    async with make() as life, life.run("r") as run:
        for operation, more in ((send, {}), (3, {}), (send("a"), {"run": payee.pay}), (send("a"), {"request": 1})):
            with pytest.raises(UsageError):
                await run.effect("mail", operation, **more)
        with pytest.raises(UsageError):
            await run.effect("mail", send({1, 2}))
        assert life.records() == []

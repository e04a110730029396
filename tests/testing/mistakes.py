"""Bodies with the mistakes that people make, each with what must be said of it; and right ones beside them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from counterfoil import UNASKABLE, Accepted, EffectUnresolved, Evidence, Failed, Recipient, Uncertain
from counterfoil.testing.recipients import BlobStore, DecisionQueue, MailSink, Payee


@dataclass
class Wrong:
    """A wrong body, made afresh: what it sends to, and what must be named.

    Args:
        make: returns the body and what `crash_points` is told besides.
        code: the mistake.
        says: a part of its text.
    """

    make: Callable[[], tuple[Callable[..., Any], dict[str, Any]]]
    code: str
    says: str


ZOO: dict[str, Wrong] = {}


def wrong(code: str, says: str) -> Callable[[Any], Any]:
    def add(make: Any) -> Any:
        ZOO[make.__name__.replace("_", " ")] = Wrong(make, code, says)
        return make

    return add


class Till:
    """A user's own fake: nothing of ours knows of it."""

    def __init__(self) -> None:
        self.charges: list[dict[str, Any]] = []

    def charge(self, key: str, cents: int) -> str:
        self.charges.append({"id": f"ch_{len(self.charges) + 1}", "key": key, "cents": cents})
        return str(self.charges[-1]["id"])

    def by_key(self, key: str) -> str | None:
        return next((c["id"] for c in self.charges if c["key"] == key), None)

    def by_amount(self, cents: int) -> str | None:
        return next((c["id"] for c in self.charges if c["cents"] == cents), None)


# --- wrong reconciles


@wrong("not-found", "your reconcile for 'charge' did not find \"ch_")
def searches_by_another_key():
    till = Till()

    def body(run):
        return run.effect(
            "charge", run=lambda ctx: till.charge(run.id, 500), reconcile=lambda ctx: till.by_key(ctx.key)
        ).__class__.__name__

    return body, {}


@wrong("foreign", "your reconcile for 'charge' returned \"ch_1\", which is somebody else's item")
def searches_by_what_it_looks_like():
    till = Till()

    def body(run):
        run.effect("charge", run=lambda ctx: till.charge(ctx.key, 500), reconcile=lambda: till.by_amount(500))

    return body, {}


@wrong("foreign", "your verify refused it")
def finds_what_its_verify_refuses():
    till = Till()

    def body(run):
        keys: list[str] = []

        def charge(ctx):
            keys.append(ctx.key)
            return {"id": till.charge(ctx.key, 500), "key": ctx.key}

        def find(ctx):
            keys.append(ctx.key)
            return {"id": till.by_amount(500), "key": till.charges[0]["key"]} if till.charges else None

        run.effect("charge", run=charge, reconcile=find, verify=lambda proof: proof["key"] in keys)

    return body, {}


@wrong("failed-but-made", "your reconcile for 'charge' raised Failed, and it happened all the same")
def takes_not_found_for_failed():
    till = Till()

    def find(ctx):
        if (found := till.by_key(ctx.key)) is None:
            raise Failed(Evidence("not-found"))
        return found

    def body(run):
        run.effect("charge", run=lambda ctx: till.charge(ctx.key, 500), reconcile=find)

    return body, {}


@wrong("failed-but-made", "your run for 'charge' raised Failed, and it had happened")
def takes_a_lost_reply_for_failed():
    payee = Payee()

    def charge(ctx):
        try:
            return payee.charge(ctx)
        except ConnectionError as error:
            raise Failed(Evidence("no-connection")) from error

    def body(run):
        run.effect("charge", run=charge, reconcile=payee.find)

    return body, {"recipients": [payee]}


@wrong("named-differently", "for the same key")
def names_it_by_the_time():
    till = Till()
    ticks = itertools.count()

    def find(ctx):
        found = till.by_key(ctx.key)
        return None if found is None else {"id": found, "seen": next(ticks)}

    def body(run):
        run.effect(
            "charge",
            run=lambda ctx: {"id": till.charge(ctx.key, 500), "seen": next(ticks)},
            reconcile=find,
        )

    return body, {}


@wrong("reconcile-raises", "your reconcile for 'charge' raises KeyError('cf-")
def raises_where_it_finds_nothing():
    charges: dict[str, str] = {}

    def charge(ctx):
        charges[ctx.key] = f"ch_{len(charges)}"
        return charges[ctx.key]

    def body(run):
        run.effect("charge", run=charge, reconcile=lambda ctx: charges[ctx.key])

    return body, {}


@wrong("visibility-too-short", "your visibility for 'mail' (1 s) is shorter than the recipient's lag")
def waits_too_short_for_a_search_index():
    sink = MailSink(lag_s=5.0)

    def body(run):
        run.effect("mail", run=sink.send, reconcile=sink.find, visibility=1.0)

    return body, {"recipients": [sink]}


@wrong("visibility-too-short", "your visibility for 'charge' (0 s)")
def forgets_the_lag_that_it_was_told_of():
    till = Till()

    def body(run):
        run.effect("charge", run=lambda ctx: till.charge(ctx.key, 500), reconcile=lambda ctx: till.by_key(ctx.key))

    return body, {"lag_s": 2.0}


@wrong("verify-refuses", "your verify for 'charge' refused")
def verifies_only_what_its_own_process_made():
    till = Till()

    def body(run):
        made: list[str] = []

        def charge(ctx):
            made.append(till.charge(ctx.key, 500))
            return made[-1]

        run.effect("charge", run=charge, reconcile=lambda ctx: till.by_key(ctx.key), verify=lambda proof: proof in made)

    return body, {}


@wrong("reconcile-sends", "your reconcile for 'charge' sends")
def sends_again_when_it_is_asked():
    payee = Payee()

    def body(run):
        run.effect("charge", run=payee.charge, reconcile=lambda ctx: payee.find(ctx) or payee.charge(ctx, cents=500))

    return body, {"recipients": [payee]}


# --- sent outside of effects, or twice


@wrong("sent-in-step", "your step 'mail' sends")
def sends_in_a_step():
    sink = MailSink()

    def body(run):
        run.step("mail", lambda: sink.send(None, to="ada"))

    return body, {"recipients": [sink]}


@wrong("sent-in-body", "your body, outside of every step and effect, sends")
def sends_in_the_body():
    outbox: list[str] = []

    def body(run):
        total = run.step("total", lambda: 7)
        outbox.append(f"total {total}")
        run.step("more", lambda: 8)

    return body, {"sent": lambda: outbox}


@wrong("sent-in-step", "your step 'mail' sends: the recipient got 2 requests from there instead of 1")
def sends_in_a_step_to_a_recipient_of_its_own():
    outbox: list[str] = []

    def body(run):
        run.step("mail", lambda: outbox.append("mail"))

    return body, {"sent": lambda: len(outbox)}


@wrong("sent-twice", "your run for 'charge' reached the recipient 2 times in 1 call: it repeats by itself")
def repeats_inside_run():
    payee = Payee()

    def charge(ctx):
        try:
            return payee.charge(ctx)
        except ConnectionError:
            return payee.charge(ctx)

    def body(run):
        run.effect("charge", run=charge, reconcile=payee.find)

    return body, {"recipients": [payee]}


@wrong("sent-again", "your body sends 'charge' again as 'charge-2' while it is unresolved")
def sends_again_under_another_name():
    till = Till()

    def body(run):
        def pay(name):
            return run.effect(
                name, run=lambda ctx: till.charge(ctx.key, 500), reconcile=lambda ctx: till.by_key(ctx.key)
            )

        try:
            pay("charge")
        except EffectUnresolved:
            pay("charge-2")

    return body, {}


# --- bodies that differ from themselves


@wrong("not-deterministic", "your body is not deterministic: after a restart it asked for effect 'mail-")
def names_an_effect_by_chance():
    sink = MailSink()

    def body(run):
        name = f"mail-{random.random()}"
        run.effect(name, run=sink.send, reconcile=sink.find)

    return body, {"recipients": [sink]}


@wrong("not-deterministic", "it asked for step 'even' where it had asked for step 'odd'")
def branches_on_how_often_it_ran():
    calls = itertools.count(1)

    def body(run):
        run.step("first", lambda: 1)
        run.step("even" if next(calls) % 2 == 0 else "odd", lambda: 2)

    return body, {}


@wrong("request-changes", "your request for 'charge' changes between runs (at was ")
def puts_the_time_into_the_request():
    till, ticks = Till(), itertools.count(100)

    def body(run):
        run.effect(
            "charge",
            run=lambda ctx: till.charge(ctx.key, 500),
            reconcile=lambda ctx: till.by_key(ctx.key),
            request={"cents": 500, "at": next(ticks)},
        )

    return body, {}


@wrong("name-used-twice", "your body uses the name 'mail' for two different requests (to was 'ada', then 'bob')")
def uses_one_name_for_two_mails():
    sink = MailSink()

    def body(run):
        for to in ("ada", "bob"):
            run.effect("mail", run=lambda ctx, to=to: sink.send(ctx, to=to), reconcile=sink.find, request={"to": to})

    return body, {}


@wrong("result-changes", "a replay returned ")
def returns_something_else_each_time():
    calls = itertools.count()

    def body(run):
        run.step("total", lambda: 7)
        return next(calls)

    return body, {}


# --- what handlers return, and bodies that do not end


@wrong("not-json", "your run for 'charge' returns something that is no JSON")
def returns_an_object():
    def body(run):
        run.effect("charge", run=object, reconcile=lambda: None)

    return body, {}


@wrong("not-json", "your step 'total' returns something that is no JSON")
def computes_a_set():
    def body(run):
        run.step("total", lambda: {1, 2})

    return body, {}


@wrong(
    "run-raises",
    "your run for 'charge' raised KeyError when nothing goes wrong: KeyError('typo') at tests/testing/mistakes.py:",
)
def has_a_run_that_never_works():
    def charge(ctx):
        nothing: dict[str, str] = {}
        return nothing["typo"]

    def body(run):
        run.effect("charge", run=charge, reconcile=lambda: None)

    return body, {}


@wrong("raises", "your body raises ZeroDivisionError('division by zero') at tests/testing/mistakes.py:")
def raises_always():
    def body(run):
        return 1 / run.step("none", lambda: 0)

    return body, {}


@wrong("raises", "your body raises UsageError('the body returns a coroutine")
def hides_that_it_is_asynchronous():
    async def body(run):
        await run.step("first", lambda: 1)

    def called(run):
        return body(run)

    return called, {}


@wrong("raises", "your body raises RuntimeError('somebody was here before')")
def cannot_be_called_twice():
    def body(run):
        been.append(run.id)
        if been.count(run.id) > 1:
            raise RuntimeError("somebody was here before")
        run.step("first", lambda: 1)

    been: list[str] = []
    return body, {}


@wrong("outcome-ignored", "your body takes every outcome for Accepted: it raises AttributeError(")
def forgets_that_it_may_be_uncertain():
    payee = Payee()

    def body(run):
        return run.effect("charge", run=payee.charge, reconcile=payee.find).proof

    return body, {"recipients": [payee]}


@wrong("waits", "your body waits for 'approval' '7', and nobody brings it")
def waits_for_nobody():
    def body(run):
        run.wait_for("approval", "7")

    return body, {}


# --- right ones

RIGHT: dict[str, Callable[[], tuple[Callable[..., Any], dict[str, Any]]]] = {}


def right(make: Any) -> Any:
    RIGHT[make.__name__.replace("_", " ")] = make
    return make


@right
def an_order_with_everything():
    payee, sink = Payee(), MailSink(lag_s=5.0)

    def body(run):
        total = run.step("total", lambda: 500)
        paid = run.effect(
            "charge",
            run=lambda ctx: payee.charge(ctx, cents=total),
            reconcile=payee.find,
            request={"cents": total},
            verify=lambda proof: proof.startswith("ch_"),
        )
        run.sleep(3600.0, name="later")
        who = run.wait_for("approval", "7")
        if isinstance(paid, Accepted):
            run.effect("mail", run=lambda ctx: sink.send(ctx, to=who), reconcile=sink.find, visibility=5.0)
        return total

    return body, {"recipients": [payee, sink], "deliver": [("approval", "7", "ada")]}


@right
def a_recipient_that_cannot_be_asked():
    sent: list[str] = []

    def body(run):
        outcome = run.effect("door", run=lambda ctx: sent.append(ctx.key), reconcile=UNASKABLE)
        if isinstance(outcome, Uncertain):
            raise RuntimeError("a person must look at the door")

    return body, {"sent": lambda: len(sent)}


@right
def a_person_decides_what_is_uncertain():
    sink = MailSink()

    def body(run):
        outcome = run.effect("mail", run=sink.send, reconcile=UNASKABLE)
        if isinstance(outcome, Uncertain):
            run.decision("mail")

    return body, {"recipients": [sink]}


@right
def an_operation_of_a_recipient():
    till = Till()
    payee = Recipient("payee")

    @payee.operation(visibility=2.0)
    def charge(ctx, cents: int) -> str:
        return till.charge(ctx.key, cents)

    @charge.reconcile
    def find(ctx, cents: int) -> str | None:
        return till.by_key(ctx.key)

    def body(run):
        for number in (1, 2):
            run.effect(f"charge-{number}", charge(cents=number))

    return body, {}


@right
def a_key_that_is_closed_for_good():
    payee = Payee()

    def body(run):
        run.effect("charge", run=payee.charge, reconcile=payee.cancel_or_find)

    return body, {"recipients": [payee]}


@right
def a_blob_and_a_permission():
    blobs, queue = BlobStore(), DecisionQueue()
    data = b"0123456789"

    def body(run):
        name = f"{run.id}.bin"
        run.effect(
            "blob", run=lambda ctx: blobs.put(ctx, name, data), reconcile=lambda ctx: blobs.find(ctx, name, data)
        )
        run.effect(
            "permission",
            run=lambda ctx: queue.reply(ctx, run.id, "allow"),
            reconcile=lambda ctx: queue.find(ctx, run.id, "allow"),
        )

    return body, {"recipients": [blobs, queue]}


@right
def an_asynchronous_order():
    payee, sink = Payee(), MailSink()

    async def body(run):
        async def total():
            return 500

        cents = await run.step("total", total)
        await run.effect(
            "charge",
            run=lambda ctx: payee.awaited.charge(ctx, cents=cents),
            reconcile=payee.awaited.find,
            request={"cents": cents},
        )
        await run.effect("mail", run=sink.send, reconcile=sink.find)
        return cents

    return body, {"recipients": [payee, sink]}


@right
def effects_side_by_side():
    import asyncio

    sink = MailSink()

    async def body(run):
        await asyncio.gather(
            *(run.effect(f"mail-{n}", run=sink.awaited.send, reconcile=sink.awaited.find) for n in range(3))
        )

    return body, {"recipients": [sink]}

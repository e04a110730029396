"""Retry is a policy that the caller gives, bounded, and only after an attempt that provably did not happen."""

import time
from typing import Any

import pytest

from counterfoil import UNASKABLE, Accepted, Budget, Evidence, Failed, Grant, Recipient, Rejected, Retry, Uncertain
from tests.broker.support import Desk
from tests.support import Colour

pytestmark = pytest.mark.rule("B7")

REJECTED = Rejected(Evidence("connect-failed", phase="not-dispatched"))
FAILED = Failed(Evidence("status", status=404))
AGAIN = Failed(Evidence("status", status=503), retryable=True)
GRANT = Grant("shop", operations=("order",))


class Shop:
    """A recipient that ends its attempts as told, and notes the key of each."""

    def __init__(self, colour: Colour, *ends: Any, **options: Any) -> None:
        self.ends = list(ends)
        self.keys: list[str] = []
        self.attempts: list[int] = []
        shop = Recipient("shop")

        def order(ctx: Any) -> str:
            self.keys.append(ctx.key)
            self.attempts.append(ctx.attempt)
            end = self.ends.pop(0)
            if isinstance(end, BaseException):
                raise end
            return str(end)

        async def order_async(ctx: Any) -> str:
            return order(ctx)

        order_async.__name__ = "order"
        function = order if colour.blocking else order_async
        self.order = shop.operation(reconcile=UNASKABLE, **options)(function)


async def ended(colour: Colour, shop: Shop, *, budget: Any = None, timeout_s: Any = None, retry: Any) -> Any:
    desk = Desk.make(colour)
    async with desk.activation(grants=[GRANT], budget=budget, deadline_s=300) as act:
        outcome = await act.perform(shop.order(), retry=retry, timeout_s=timeout_s)
    assert desk.report().idle
    return outcome


async def test_without_a_policy_there_is_one_attempt(colour: Colour) -> None:
    shop = Shop(colour, REJECTED, "id", retryable=True)
    assert await ended(colour, shop, retry=None) == REJECTED
    assert len(shop.keys) == 1


@pytest.mark.parametrize("first", [REJECTED, AGAIN])
async def test_what_provably_did_not_happen_is_tried_again_with_a_key_of_its_own(colour: Colour, first: Any) -> None:
    shop = Shop(colour, first, first, "id")
    outcome = await ended(colour, shop, retry=Retry(3))
    assert isinstance(outcome, Accepted)
    assert shop.attempts == [1, 2, 3]
    assert len(set(shop.keys)) == 3


async def test_a_failure_is_tried_again_only_where_the_contract_says_that_this_is_safe(colour: Colour) -> None:
    plain = Shop(colour, FAILED, "id")
    assert await ended(colour, plain, retry=Retry(3)) == FAILED
    marked = Shop(colour, FAILED, "id", retryable=True)
    assert isinstance(await ended(colour, marked, retry=Retry(3)), Accepted)


@pytest.mark.rule("O3")
@pytest.mark.parametrize("options", [{}, {"keep_key": True}, {"retryable": True, "keep_key": True}])
async def test_the_uncertain_is_never_sent_again_whatever_key_it_carries(colour: Colour, options: Any) -> None:
    shop = Shop(colour, ConnectionError(), "id", **options)
    assert isinstance(await ended(colour, shop, retry=Retry(9)), Uncertain)
    assert len(shop.keys) == 1


@pytest.mark.rule("O3")
async def test_uncertainty_is_sticky_across_attempts(colour: Colour) -> None:
    shop = Shop(colour, REJECTED, AGAIN, ConnectionError(), FAILED)
    assert isinstance(await ended(colour, shop, retry=Retry(9)), Uncertain)
    assert len(shop.keys) == 3
    # Of a failure and a rejection the failure counts: something did reach the recipient.
    shop = Shop(colour, AGAIN, REJECTED, REJECTED)
    assert await ended(colour, shop, retry=Retry(3)) == AGAIN


async def test_attempts_are_bounded_in_number_and_time(colour: Colour) -> None:
    shop = Shop(colour, *[REJECTED] * 9)
    assert await ended(colour, shop, retry=Retry(4)) == REJECTED
    assert len(shop.keys) == 4
    shop = Shop(colour, *[REJECTED] * 9)
    assert await ended(colour, shop, retry=Retry(9, within_s=0.5, backoff_s=9)) == REJECTED
    assert len(shop.keys) == 1
    # What would be due after the deadline is not waited for.
    shop = Shop(colour, *[REJECTED] * 9)
    began_s = time.monotonic()
    assert await ended(colour, shop, retry=Retry(9, backoff_s=200, backoff_max_s=200), timeout_s=100) == REJECTED
    assert time.monotonic() - began_s < 100
    assert len(shop.keys) == 1


async def test_a_backoff_is_waited_for(colour: Colour) -> None:
    shop = Shop(colour, REJECTED, REJECTED, "id")
    began_s = time.monotonic()
    assert isinstance(await ended(colour, shop, retry=Retry(3, backoff_s=0.05)), Accepted)
    assert time.monotonic() - began_s >= 0.149


async def test_each_attempt_is_charged_and_refused_by_its_own_budget(colour: Colour) -> None:
    shop = Shop(colour, *[AGAIN] * 9)
    outcome = await ended(colour, shop, retry=Retry(9), budget=Budget(calls=2))
    assert outcome == AGAIN
    assert len(shop.keys) == 2


async def test_a_kept_key_is_kept(colour: Colour) -> None:
    shop = Shop(colour, REJECTED, "id", keep_key=True)
    assert isinstance(await ended(colour, shop, retry=Retry(2)), Accepted)
    assert len(set(shop.keys)) == 1


async def test_what_somebody_decided_is_not_asked_again(colour: Colour) -> None:
    shop = Shop(colour, "id")
    asked: list[Any] = []

    def no(proposal: Any) -> bool:
        asked.append(proposal)
        return False

    desk = Desk.make(colour, policy=no)
    async with desk.activation(grants=[GRANT]) as act:
        outcome = await act.perform(shop.order(), retry=Retry(5))
    assert outcome.evidence.kind == "refused-by-policy"
    assert (len(asked), shop.keys) == (1, [])


async def test_what_a_policy_refuses_at_the_gate_is_not_asked_again(colour: Colour) -> None:
    shop = Shop(colour, "id")
    asked: list[Any] = []

    def until_dispatch(proposal: Any) -> bool:
        asked.append(proposal)
        return len(asked) % 3 != 0

    desk = Desk.make(colour, policy=until_dispatch)
    async with desk.activation(grants=[GRANT]) as act:
        outcome = await act.perform(shop.order(), retry=Retry(5))
    assert outcome.evidence.kind == "refused-by-policy"
    assert (len(asked), shop.keys) == (3, [])

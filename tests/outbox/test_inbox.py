"""The consumers' side: a message is taken once, in the consumer's own transaction, within a bounded window."""

from __future__ import annotations

from contextlib import suppress

import pytest

from counterfoil import AsyncInbox, Inbox, UsageError
from tests.outbox.shop import FileShop, Shop


def test_a_message_is_taken_once_and_a_rollback_gives_it_back(shop: Shop) -> None:
    with Inbox(shop.url) as inbox:
        with shop.transaction() as connection:
            assert [inbox.once(connection, "billing", m) for m in ("m1", "m1", "m2")] == [True, False, True]
            assert inbox.once(connection, "shipping", "m1")
        with suppress(ZeroDivisionError), shop.transaction() as connection:
            assert inbox.once(connection, "billing", "m3")
            raise ZeroDivisionError
        with shop.transaction() as connection:
            assert [inbox.once(connection, "billing", m) for m in ("m1", "m3")] == [False, True]
        with shop.connected() as connection, pytest.raises(UsageError, match="no open transaction"):
            inbox.once(connection, "billing", "m4")


def test_what_is_older_than_the_window_is_forgotten_a_few_at_a_time(shop: Shop) -> None:
    with Inbox(shop.url, window_s=3600) as inbox:
        with shop.transaction() as connection:
            for number in range(25):
                inbox.once(connection, "billing", f"old{number}")
        shop.sql("UPDATE counterfoil_inbox SET at = at - 7200")
        with shop.transaction() as connection:
            for number in range(3):
                assert inbox.once(connection, "billing", f"new{number}")
        with shop.transaction() as connection:
            assert inbox.once(connection, "billing", "old0")
            assert not inbox.once(connection, "billing", "new0")


async def test_the_asyncio_colour_takes_messages_through_blocking_connections(file: FileShop) -> None:
    async with AsyncInbox(file.url) as inbox:
        with file.transaction() as connection:
            assert [await inbox.once(connection, "billing", "m1") for _ in range(2)] == [True, False]


@pytest.mark.parametrize("wrong", [("", "m"), ("s", ""), ("s", 7), ("s\0", "m")])
def test_wrong_arguments_are_refused(file: FileShop, wrong: tuple[str, str]) -> None:
    with Inbox(file.url) as inbox, file.transaction() as connection, pytest.raises(UsageError):
        inbox.once(connection, *wrong)
    with pytest.raises(UsageError):
        Inbox(file.url, window_s=0)

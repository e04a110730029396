"""The parts of an upload: some are on their way while the next one is digested, and each is sent once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from counterfoil import threads
from counterfoil.recipients.blobs.pieces import Piece

T = TypeVar("T")

# With the one that is being filled these are all the bytes that an upload holds.
AT_ONCE: Final = 2


class Parts(Generic[T]):
    """Sends parts in other threads.

    Args:
        send: sends one part, by its number from 1, and returns what is known of it.
    """

    def __init__(self, send: Callable[[int, bytes], T]) -> None:
        self._send = send
        self._turn = threading.Condition()
        self._under_way = 0
        self._error: BaseException | None = None
        self._sent: dict[int, T] = {}
        self.count = 0

    def add(self, pieces: list[Piece]) -> None:
        """Have the next part sent; waits while as many are on their way as may be. It takes the pieces.

        Raises:
            Exception: what sending an earlier one raised; this one is not sent.
        """
        with self._turn:
            self._turn.wait_for(lambda: self._under_way < AT_ONCE)
            if self._error is not None:
                raise self._error
            # Only now: whoever waits holds its bytes once.
            body = b"".join(pieces)
            pieces.clear()
            self._under_way += 1
            self.count += 1
            number = self.count
        threads.submit(lambda: self._one(number, body))

    def all(self) -> list[T]:
        """Return what is known of all parts, in order, when they are there.

        Raises:
            Exception: what sending one raised.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        return [self._sent[number] for number in sorted(self._sent)]

    def wait(self) -> None:
        """Return when none is on its way."""
        with self._turn:
            self._turn.wait_for(lambda: not self._under_way)

    def _one(self, number: int, body: bytes) -> None:
        error = None
        try:
            self._sent[number] = self._send(number, body)
        except BaseException as raised:  # noqa: BLE001 - the writer gets it
            error = raised
        with self._turn:
            self._under_way -= 1
            self._error = self._error or error
            self._turn.notify_all()

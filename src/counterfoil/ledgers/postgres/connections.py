"""One connection to PostgreSQL: every wait has a deadline, and nothing that was sent is ever cut half-way."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

T = TypeVar("T")

CONNECT_S: Final = 8
# A commit that waits for a standby, and is told not to, says so in a warning and then succeeds.
_WAIT_CANCELLED: Final = "01000"
_BINARY: Final = 1
_IDLE: Final = TransactionStatus.IDLE
_READ: Final = select.POLLIN
_WRITE: Final = select.POLLOUT
_GOOD: Final = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Overdue(psycopg.OperationalError):
    """The server has not answered in time; what became of the question is unknown."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection of ours, in autocommit, without state in its session, so that a pooler may be in between.

    Attributes:
        give_up: when to stop waiting for an answer (`time.monotonic`).
        wait_cancelled: whether a commit was told not to wait for its standby.
    """

    give_up: float = 0.0
    wait_cancelled: bool = False

    @classmethod
    def open(cls, conninfo: str) -> Self:
        """Connect.

        Raises:
            psycopg.OperationalError: it cannot be done; nothing was sent that could have an effect.
        """
        made = cls.connect(conninfo, autocommit=True, prepare_threshold=None)
        made.add_notice_handler(made.noticed)
        return made

    @property
    def idle(self) -> bool:
        """Whether it can be used for another question."""
        return self.pgconn.transaction_status == _IDLE

    def wait(self, gen: PQGen[T], interval: float = 0.0, timeout: float | None = None) -> T:  # noqa: ARG002
        """Wait for what psycopg does, until `give_up`. An interrupt is passed on when the answer is there."""
        interrupt: BaseException | None = None
        socket = self.pgconn.socket
        try:
            wanted = next(gen)
            while True:
                try:
                    ready = self._wait(socket, _events(wanted))
                except psycopg.Error:
                    raise
                except BaseException as error:
                    if interrupt is not None:
                        raise
                    interrupt = error
                    continue
                wanted = gen.send(_ready(ready))
        except StopIteration as done:
            if interrupt is not None:
                raise interrupt from None
            return done.value  # type: ignore[no-any-return]

    def ask(self, question: bytes, values: Sequence[bytes | None], types: Sequence[int]) -> PGresult:
        """Ask one question with binary parameters, and return its binary answer.

        An interrupt is passed on when the answer is there; a second one at once.

        Raises:
            psycopg.Error: what the server said; a connection that is not idle then leaves the end unknown.
        """
        pgconn = self.pgconn
        pgconn.send_query_params(question, values, types, [_BINARY] * len(values), _BINARY)
        interrupt: BaseException | None = None
        answers: list[PGresult] = []
        ended = False
        while not ended:
            try:
                ended = self._collect(answers)
            except psycopg.Error:
                raise
            except BaseException as error:
                if interrupt is not None:
                    raise
                interrupt = error
        if interrupt is not None:
            raise interrupt
        for answer in answers:
            if answer.status not in _GOOD:
                raise errors.error_from_result(answer)
        if len(answers) != 1:
            raise psycopg.OperationalError("the connection ended without an answer")
        return answers[0]

    def heard(self, timeout_s: float) -> bool:
        """Wait for notifications; return whether there were any.

        Raises:
            psycopg.OperationalError: the connection is lost.
        """
        poll = select.poll()
        poll.register(self.pgconn.socket, _READ)
        if not poll.poll(timeout_s * 1000):
            return False
        self.pgconn.consume_input()
        found = False
        while self.pgconn.notifies() is not None:
            found = True
        return found

    def _collect(self, answers: list[PGresult]) -> bool:
        pgconn = self.pgconn
        while pgconn.flush():
            if self._wait(pgconn.socket, _READ | _WRITE) & _READ:
                pgconn.consume_input()
        while True:
            while pgconn.is_busy():
                self._wait(pgconn.socket, _READ)
                pgconn.consume_input()
            answer = pgconn.get_result()
            if answer is None:
                return True
            answers.append(answer)
            if answer.status not in (*_GOOD, ExecStatus.FATAL_ERROR):
                raise psycopg.InternalError(f"an answer of status {answer.status} was not expected")

    def _wait(self, socket: int, events: int) -> int:
        poll = select.poll()
        poll.register(socket, events)
        found = poll.poll(max(0.0, self.give_up - time.monotonic()) * 1000)
        if not found:
            self.close()
            raise Overdue("the server did not answer in time")
        return found[0][1]

    def noticed(self, notice: errors.Diagnostic) -> None:
        """Take note of what the server says beside its answers."""
        if notice.sqlstate == _WAIT_CANCELLED:
            self.wait_cancelled = True


def _events(wanted: int) -> int:
    # psycopg's own words: 1 is reading, 2 is writing.
    return (_READ if wanted & 1 else 0) | (_WRITE if wanted & 2 else 0)


def _ready(found: int) -> Any:
    return (1 if found & ~_WRITE else 0) | (2 if found & _WRITE else 0)

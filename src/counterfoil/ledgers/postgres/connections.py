"""One connection to PostgreSQL: every wait has a deadline, and nothing that was sent is ever cut half-way."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from types import NoneType
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row

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
    """A connection of ours, in autocommit. Its session keeps statements only where no pooler is in between.

    Attributes:
        give_up: when to stop waiting for an answer (`time.monotonic`).
        wait_cancelled: whether a commit was told not to wait for its standby.
        fresh_until: until when it counts as alive, since it has just answered.
    """

    give_up: float = 0.0
    wait_cancelled: bool = False
    fresh_until: float = 0.0

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn, row_factory=tuple_row)
        # Whether its session may keep statements (None: nobody has asked yet), and which it keeps, by what they say.
        self._may_keep: bool | None = None
        self._kept: dict[bytes, bytes] = {}
        self._names = count()
        self._poll = select.poll()
        self._polled = 0

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

    @property
    def in_progress(self) -> bool:
        """Whether a statement on it has not ended, outside of a pipeline."""
        pgconn = self.pgconn
        return pgconn.transaction_status == TransactionStatus.ACTIVE and pgconn.pipeline_status == PipelineStatus.OFF

    def direct(self) -> bool:
        """Return whether no pooler is in between: one gives out process ids of its own."""
        found = self.execute("SELECT pg_backend_pid()").fetchone()
        return found == (self.pgconn.backend_pid,)

    @property
    def stale(self) -> bool:
        """Whether the server has ended it while nobody used it for a while."""
        if time.monotonic() < self.fresh_until:
            return False
        poll = select.poll()
        poll.register(self.pgconn.socket, _READ)
        if not poll.poll(0):
            return False
        try:
            self.pgconn.consume_input()
        except psycopg.OperationalError:
            return True
        return self.pgconn.status != ConnStatus.OK

    def wait(self, gen: PQGen[T], interval: float = 0.0, timeout: float | None = None) -> T:  # noqa: ARG002
        """Wait for what psycopg does, until `give_up`. An interrupt is passed on when the answer is there."""
        socket = self.pgconn.socket
        patience = _Patience()
        with patience:
            try:
                wanted = next(gen)
                while True:
                    ready = patience.through(partial(self._wait, socket, _events(wanted)))
                    if ready is not None:
                        wanted = gen.send(_ready(ready))
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    def ask(
        self,
        question: bytes,
        values: Sequence[bytes | None],
        types: Sequence[int],
        *,
        often: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> PGresult:
        """Ask one question with binary parameters, and return its binary answer.

        An interrupt is passed on when the answer is there; a second one at once.

        Args:
            question: one statement.
            values: its parameters.
            types: their types.
            often: it is asked again and again: its session shall keep it, if no pooler is in between.
            meanwhile: called when it is on its way, before the answer is waited for; it raises nothing.

        Raises:
            psycopg.Error: what the server said; a connection that is not idle then leaves the end unknown.
        """
        if often and self._keeps(question, types):
            try:
                return self._asked(lambda: self._send_kept(question, values), meanwhile)
            except errors.InvalidSqlStatementName:
                # Something in between changes sessions after all; nothing was done.
                self._may_keep = False
                if not self.idle:
                    # A transaction that has failed is begun again by whoever began it.
                    raise
        return self._asked(
            lambda: self.pgconn.send_query_params(question, values, types, [_BINARY] * len(values), _BINARY), meanwhile
        )

    def _keeps(self, question: bytes, types: Sequence[int]) -> bool:
        if self._may_keep is None:
            self._may_keep = self.direct()
        if self._may_keep and question not in self._kept:
            name = b"counterfoil_%d" % next(self._names)
            self._asked(lambda: self.pgconn.send_prepare(name, question, types))
            self._kept[question] = name
        return self._may_keep

    def _send_kept(self, question: bytes, values: Sequence[bytes | None]) -> None:
        self.pgconn.send_query_prepared(self._kept[question], values, [_BINARY] * len(values), _BINARY)

    def _asked(self, send: Callable[[], None], meanwhile: Callable[[], None] | None = None) -> PGresult:
        send()
        if meanwhile is not None:
            self.pgconn.flush()
            meanwhile()
        patience = _Patience()
        answers: list[PGresult] = []
        with patience:
            while patience.through(lambda: self._collect(answers)) is None:
                pass
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

    def _wait(self, socket: int, events: int) -> int:
        if events != self._polled:
            self._poll.register(socket, events)
            self._polled = events
        found = self._poll.poll(max(0.0, self.give_up - time.monotonic()) * 1000)
        if not found:
            self.close()
            raise Overdue("the server did not answer in time")
        return found[0][1]

    def noticed(self, notice: errors.Diagnostic) -> None:
        """Take note of what the server says beside its answers."""
        if notice.sqlstate == _WAIT_CANCELLED:
            self.wait_cancelled = True


class _Patience:
    """Puts off an interrupt (Ctrl-C) until the answer is there; a second one is passed on at once."""

    def __init__(self) -> None:
        self._interrupt: BaseException | None = None

    def through(self, work: Callable[[], T]) -> T | None:
        """Do work, or return None where it was interrupted and is to be done again."""
        try:
            return work()
        except psycopg.Error:
            raise
        except BaseException as error:
            if self._interrupt is not None:
                raise
            self._interrupt = error
            return None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._interrupt is not None and isinstance(error, (psycopg.Error, NoneType)):
            raise self._interrupt from error


def _events(wanted: int) -> int:
    # psycopg's own words: 1 is reading, 2 is writing.
    return (_READ if wanted & 1 else 0) | (_WRITE if wanted & 2 else 0)


def _ready(found: int) -> Any:
    return (1 if found & ~_WRITE else 0) | (2 if found & _WRITE else 0)

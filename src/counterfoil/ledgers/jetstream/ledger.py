"""The JetStream ledger: one stream, any number of processes on any number of machines, and no database."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, Final, TypeVar

from counterfoil.errors import UsageError
from counterfoil.ledgers.jetstream import opening
from counterfoil.ledgers.jetstream.diagnosis import diagnose
from counterfoil.ledgers.jetstream.intake import Intake
from counterfoil.ledgers.jetstream.lives import Lives
from counterfoil.ledgers.jetstream.place import Place
from counterfoil.ledgers.jetstream.pruning import bury
from counterfoil.ledgers.jetstream.reader import Reader
from counterfoil.ledgers.jetstream.restores import Restores
from counterfoil.ledgers.jetstream.store import Store
from counterfoil.ledgers.jetstream.subjects import Subjects, checked
from counterfoil.ledgers.jetstream.writer import Writer
from counterfoil.ledgers.lanes import Lanes
from counterfoil.ledgers.rows import OwnerRow, RunRow, closed, forked
from counterfoil.ledgers.submissions import Submission
from counterfoil.ports.ledger import Deliver
from counterfoil.protocol.records import Entry, Record
from counterfoil.threads import Loop, when_collected

T = TypeVar("T")

# Of blocking callers, who commit for each other.
_LANES: Final = 4
# Whoever leaves waits no longer for servers that are gone.
_LEAVE_S: Final = 2.0
_log: Final = logging.getLogger("counterfoil")


class JetStreamLedger:
    """A ledger in a stream of its own on NATS JetStream.

    It is safe to use from several threads. What `append` returns was acknowledged by the stream: by a majority of its
    replicas, each of which has synced it, if `sync_interval` is `always`.

    Args:
        place: where the servers are.
        stream: the ledger's stream; made if it is not there.
        timeout_s: how long an append, a read or another question may take, in seconds.
        beat_s: seconds between two beats of owners that register here; an owner is taken for gone after three.
        replicas: of a stream that is made; None: 3 in a cluster, else 1.
        monitors: the HTTP monitoring addresses of all servers, by which `sync_interval` is seen; none: port 8222.
        allow_lazy_sync: go on where `sync_interval` is not `always`, or is not known: a power loss may then take
            records that were acknowledged.
        create: make the stream if it is not there.

    Raises:
        UsageError: what the caller must mend: an old server, a stream that can lose records, a lazy sync.
        LedgerUnavailable: it cannot be reached.
    """

    def __init__(
        self,
        place: Place,
        *,
        stream: str = "counterfoil",
        timeout_s: float = 30.0,
        beat_s: float = 5.0,
        replicas: int | None = None,
        monitors: Sequence[str] = (),
        allow_lazy_sync: bool = False,
        create: bool = True,
    ) -> None:
        if timeout_s <= 0 or beat_s <= 0:
            raise UsageError(f"timeout_s={timeout_s}, beat_s={beat_s} is not possible", hint="both are more than 0")
        self.sync = opening.sync_policy(place.servers, monitors)
        self._lazy_allowed = allow_lazy_sync
        self.stream = checked(stream)
        self._pid = os.getpid()
        self._closed = False
        self._timeout_s = timeout_s
        self._loop = Loop("jetstream")
        try:
            self._run(self._open(place, beat_s=beat_s, replicas=replicas, create=create))
        except BaseException:
            self._loop.stop()
            raise
        if self.caution is not None and create:  # who only looks whether a ledger is there opens it once more
            _log.warning("%s (allow_lazy_sync is set)", self.caution)
        # A ledger that nobody closes leaves no socket behind; its lives are over by their silence.
        self._forgotten = when_collected(self, partial(self._loop.stop, self._store.close))
        self._lanes = Lanes(_LANES, self._commit)
        self._intake = Intake(self._loop, self._writer.commit)

    async def _open(self, place: Place, *, beat_s: float, replicas: int | None, create: bool) -> None:
        timeout_s = self._timeout_s
        self._store = Store(place, Subjects(self.stream))
        try:
            await opening.reach(self._store, timeout_s=timeout_s)
            # Not before: where no server runs, what cannot be seen of it is not what is to be mended.
            self._check_sync()
            await opening.prepare(self._store, replicas=replicas, create=create, timeout_s=timeout_s)
            self._reader = Reader(self._store, timeout_s=timeout_s)
            self._lives = Lives(self._store, timeout_s=timeout_s, beat_s=beat_s)
            self._restores = Restores(self._store, lives=self._lives, timeout_s=timeout_s)
            self._writer = Writer(self._store, timeout_s=timeout_s, fault=self._restores.fault, own=self._lives.own)
            await self._restores.restored()
        except BaseException:
            await self._store.close()
            raise

    @property
    def caution(self) -> str | None:
        """What this ledger does not promise, because that was allowed (`allow_lazy_sync`); None: it promises all."""
        if self.sync == "always":
            return None
        found = "is not always" if self.sync == "lazy" else "cannot be seen"
        return f"sync_interval of the NATS servers {found}: a power loss may take records that were acknowledged"

    def _check_sync(self) -> None:
        if self.caution is not None and not self._lazy_allowed:
            raise opening.lazy(self.caution)

    def __repr__(self) -> str:
        return f"<JetStreamLedger {self.stream!r}, sync_interval {self.sync}>"

    @property
    def place(self) -> tuple[str, str]:
        """What tells this ledger's stream from all others."""
        return ("nats", self.stream)

    def append(self, entry: Entry, *, settle: bool = False) -> Record:
        """Fill a slot, or learn who filled it. See `counterfoil.ports.ledger.Ledger.append`.

        What is returned was acknowledged, or applied, by the stream, so `settle` asks for nothing more.
        """
        self._usable()
        return self._lanes.append(Submission(entry, settle=settle))

    def read(self, namespace: str, run: str, after: int = 0) -> Sequence[Record]:
        """Return the records of a run with a position above `after`, in order of position: the stream's sequence."""
        return self._ask(lambda: self._reader.records(namespace, run, after))

    def submit(self, entry: Entry, *, settle: bool, token: object, deliver: Deliver) -> None:
        """Append without waiting; `deliver` is called from a thread of the ledger."""
        self._usable()
        self._intake.put(Submission(entry, settle=settle, token=token, deliver=deliver))

    def register(self, label: str) -> str:
        """Register a life of this process, durably, and return its fresh epoch; its heart beats from now on.

        Raises:
            LedgerReadOnly: a person must accept the ledger first.
        """
        if self.restored() is not None and (fault := self._restores.fault()) is not None:
            raise fault
        return self._ask(lambda: self._lives.register(label))

    def retire(self, epoch: str) -> None:
        """End an own life, durably; unknown epochs and those of others are left alone."""
        self._ask(lambda: self._lives.retire(epoch))

    def gone(self, epoch: str) -> bool:
        """Return True only if a life is proved to be over; it is then retired durably.

        Silence must have been seen for three beats, so the first answers about a life that was killed are False.
        """
        return self._ask(lambda: self._lives.gone(epoch))

    def live(self, epoch: str) -> bool:
        """Return whether an own life may still decide: nobody has retired it."""
        return self._ask(lambda: self._lives.live(epoch))

    def owners(self) -> Sequence[OwnerRow]:
        """Return the lives that are not known to be over, oldest first."""
        return self._ask(self._lives.owners)

    def changes(self, after: int) -> tuple[set[tuple[str, str]], int]:
        """Return the runs with records since `after`, a position in the stream, and the new value for it."""
        return self._ask(lambda: self._reader.changes(after))

    def restored(self) -> str | None:
        """Return why this ledger refuses new records until a person accepts it, or None."""
        return self._ask(self._restores.restored)

    def accept_restore(self, *, by: str, reason: str) -> int:
        """Record, durably, that a person accepted the ledger as it is; return the new generation.

        All owners end with it.
        """
        return self._ask(lambda: self._restores.accept(self._writer, by=by, reason=reason))

    def accepted_generation(self) -> int:
        """Return the latest accepted generation, 0 if there was none."""
        return self._ask(self._restores.accepted_generation)

    def runs(
        self,
        namespace: str,
        *,
        after: int = 0,
        limit: int = 1000,
        finished: bool | None = None,
        holding: Sequence[tuple[str, str]] = (),
    ) -> Sequence[RunRow]:
        """Return a page of runs, oldest first. See `counterfoil.ports.ledger.Catalogue.runs`.

        Each run of the page is read for it.
        """
        return self._ask(
            lambda: self._reader.runs(namespace, after=after, limit=limit, finished=finished, holding=holding)
        )

    def bury(self, namespace: str, run: str, *, tombstone: Entry, kept: Sequence[Entry], drop: Sequence[str]) -> None:
        """Prune one page of a finished run, durably. See `counterfoil.ports.ledger.Retention.bury`.

        It is no transaction: first the tombstone is written, then what is kept, and then records are removed.

        Raises:
            UsageError: the run is not finished.
        """
        self._ask(
            lambda: bury(
                self._store,
                reader=self._reader,
                writer=self._writer,
                place=(namespace, run),
                entries=(tombstone, *kept),
                drop=drop,
                timeout_s=self._timeout_s,
            )
        )

    def diagnose(self) -> Sequence[tuple[str, str, str, str]]:
        """Return findings about what the guarantees rest on: (level, subject, found, mend)."""
        reason, owners = self.restored(), self.owners()
        question = f"STREAM.INFO.{self.stream}"
        info = self._ask(lambda: self._store.api(question, {}, deadline=time.monotonic() + self._timeout_s))
        return diagnose(info, version=self._store.server["version"], sync=self.sync, reason=reason, owners=owners)

    def close(self) -> None:
        """End the lives that were registered through this object, and close the connection."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._run(self._leave())
        self._forgotten.detach()
        self._loop.stop(self._store.close)

    async def _leave(self) -> None:
        await self._intake.rest(_LEAVE_S)
        await self._lives.let_go()
        await self._store.close()

    def _commit(self, batch: Sequence[Submission]) -> None:
        if self._closed:
            for item in batch:
                item.reply = closed()
            return
        self._run(self._writer.commit(batch))

    def _ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._usable()
        try:
            return self._run(question())
        except (CancelledError, RuntimeError):
            # Another thread has ended the loop meanwhile.
            self._usable()
            raise

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(coroutine)

    def _usable(self) -> None:
        if self._pid != os.getpid():
            raise forked()
        if self._closed:
            raise closed()

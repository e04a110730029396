"""`AsyncBlobs`: the same recipient with streams that are awaited; the work is done in worker threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

from counterfoil import threads
from counterfoil.outcomes import Outcome
from counterfoil.recipients.blobs.recipient import CLEAN_LIMIT, CLEAN_WITHIN_S, Blobs, Checked
from counterfoil.recipients.blobs.reference import DEFAULT_MEDIA_TYPE
from counterfoil.recipients.blobs.store import Cleaned
from counterfoil.recipients.blobs.streams import PIECE_BYTES, Progress, Reader, Writer

T = TypeVar("T")


class AsyncWriter:
    """A `Writer` whose methods are awaited. Somebody who is cancelled leaves; what was begun goes on to its end."""

    def __init__(self, begin: Callable[[], Writer]) -> None:
        self._begin = begin
        self._writer: Writer | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.abandon()

    @property
    def written(self) -> int:
        """Bytes so far."""
        return 0 if self._writer is None else self._writer.written

    async def write(self, data: bytes | bytearray | memoryview) -> int:
        """Take the next bytes; see `Writer.write`."""
        writer = await self._begun()
        return await apart(lambda: writer.write(data))

    async def seal(self) -> Outcome[Any]:
        """Make the blob durable, verify it and let it be seen; see `Writer.seal`."""
        writer = await self._begun()
        return await apart(writer.seal)

    async def abandon(self) -> None:
        """Give it up; does nothing to what was sealed."""
        async with self._turn:
            if (writer := self._writer) is not None:
                await apart(writer.abandon)

    async def _begun(self) -> Writer:
        async with self._turn:
            if self._writer is None:
                await apart(self._reserve)
            assert self._writer is not None
            return self._writer

    def _reserve(self) -> None:
        # In the thread: whoever is cancelled meanwhile has it to give up.
        self._writer = self._begin()


class AsyncReader:
    """A `Reader` whose methods are awaited; iterate over it with `async for`."""

    def __init__(self, begin: Callable[[], Reader]) -> None:
        self._begin = begin
        self._reader: Reader | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        async with self._turn:
            await self._begun()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self.read(PIECE_BYTES):
            yield piece

    async def read(self, count: int = -1) -> bytes:
        """Return the next bytes, verified; see `Reader.read`."""
        async with self._turn:
            reader = await self._begun()
            return await apart(lambda: reader.read(count))

    async def close(self) -> None:
        """Let go of the blob."""
        async with self._turn:
            if (reader := self._reader) is not None:
                await apart(reader.close)

    async def _begun(self) -> Reader:
        if self._reader is None:
            await apart(self._open)
        assert self._reader is not None
        return self._reader

    def _open(self) -> None:
        # In the thread: whoever is cancelled meanwhile has it to let go of.
        self._reader = self._begin()


class AsyncBlobs:
    """`Blobs` for asyncio: the same names; streams, `check`, `references` and `clean` are awaited.

    `put` reads a file once, in the calling thread: give the digest where it is known, or call it in a thread.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._blobs = Blobs(url, **options)
        self.name = self._blobs.name
        self.contract = self._blobs.contract
        self.operations = self._blobs.operations
        self.put = self._blobs.put
        self.restore = self._blobs.restore

    def __repr__(self) -> str:
        return f"Async{self._blobs!r}"

    def writer(
        self,
        *,
        size: int | None = None,
        media_type: str = DEFAULT_MEDIA_TYPE,
        digest: str | None = None,
        progress: Progress | None = None,
    ) -> AsyncWriter:
        """Return what writes a blob; see `Blobs.writer`."""
        return AsyncWriter(
            lambda: self._blobs.writer(size=size, media_type=media_type, digest=digest, progress=progress)
        )

    def reader(
        self, reference: Any, *, start: int = 0, length: int | None = None, progress: Progress | None = None
    ) -> AsyncReader:
        """Return what reads a part of a sealed blob; see `Blobs.reader`."""
        return AsyncReader(lambda: self._blobs.reader(reference, start=start, length=length, progress=progress))

    async def check(self, reference: Any, *, progress: Progress | None = None) -> Checked:
        """Read a whole blob and compare it with its reference; see `Blobs.check`."""
        return await apart(lambda: self._blobs.check(reference, progress=progress))

    async def check_all(self, prefix: str = "", *, progress: Progress | None = None) -> AsyncIterator[Checked]:
        """Check the sealed blobs one by one; see `Blobs.check_all`."""
        found = self._blobs.check_all(prefix, progress=progress)
        while (one := await apart(lambda: next(found, None))) is not None:
            yield one

    async def references(self, prefix: str = "") -> AsyncIterator[dict[str, Any]]:
        """Go through the sealed blobs; see `Blobs.references`."""
        found = self._blobs.references(prefix)
        while (one := await apart(lambda: next(found, None))) is not None:
            yield one

    async def capabilities(self) -> dict[str, Any]:
        """Say what the place can do; see `Blobs.capabilities`."""
        return await apart(self._blobs.capabilities)

    async def clean(self, *, limit: int = CLEAN_LIMIT, within_s: float = CLEAN_WITHIN_S) -> Cleaned:
        """Remove what was left behind; see `Blobs.clean`."""
        return await apart(lambda: self._blobs.clean(limit=limit, within_s=within_s))


async def apart(work: Callable[[], T]) -> T:
    """Do blocking work in a thread; a caller who is cancelled waits until it has ended, so that nothing overlaps."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((value, error))

    def call() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as raised:  # noqa: BLE001 - whoever waits gets it
            error = raised
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            loop.call_soon_threadsafe(tell, value, error)

    threads.submit(call)
    value, error = await _waited(done)
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


async def _waited(done: asyncio.Future[T]) -> T:
    """Wait for a future that is not to be cancelled; a cancellation is passed on when it is done."""
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return done.result()

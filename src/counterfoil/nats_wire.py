"""nats-py's transport, with a short way past its queues for what is published and answered in great numbers.

nats-py connects, logs in, pings, and notices the end. What it does for each message, two queues and two tasks that are
woken, costs several times what the message costs. So frames are written here, those of one turn of the loop together,
and answers to one inbox are taken out of what is read before nats-py sees it. An answer with headers goes its usual
way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from nats.aio.transport import TcpTransport

_LINE: Final = b"\r\n"

Heard = Callable[[bytes, bytes], None]


def headers(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Return a message's headers as they are on the wire; the pairs are checked by whoever made them."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    return f"NATS/1.0\r\n{lines}\r\n".encode()


class Wire(TcpTransport):
    """One TCP connection, with or without TLS. All methods run on its loop."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._loop = asyncio.get_running_loop()
        self._inbox = b""
        self._heard: Heard | None = None
        self._ours = b""
        # The beginning of something whose end has not come yet, and how long it will be, if that is known.
        self._begun = bytearray()
        self._wanted = 0
        self._frames: list[bytes] = []
        self.gathered_bytes = 0

    def __bool__(self) -> bool:
        # nats-py takes the place of a transport that is not connected yet with one of its own.
        return True

    def listen(self, inbox: str, heard: Heard) -> None:
        """Call `heard(token, payload)` for each answer without headers to `inbox.token`, in the order they came.

        It must not raise.
        """
        self._inbox, self._heard = inbox.encode(), heard
        self._ours = b"MSG %b." % self._inbox

    def publish(self, subject: str, payload: bytes, *, token: bytes, head: bytes = b"") -> None:
        """Offer a message whose answer goes to `inbox.token`; it is written before the loop waits for anything.

        Args:
            subject: where to.
            payload: what is sent.
            token: one word.
            head: what `headers` made; empty for a message without.
        """
        where, size = subject.encode(), len(payload)
        if head:
            sizes = (len(head), len(head) + size)
            frame = b"HPUB %b %b.%b %d %d\r\n%b%b\r\n" % (where, self._inbox, token, *sizes, head, payload)
        else:
            frame = b"PUB %b %b.%b %d\r\n%b\r\n" % (where, self._inbox, token, size, payload)
        if not self._frames:
            self._loop.call_soon(self.flush)
        self._frames.append(frame)
        self.gathered_bytes += len(frame)

    def flush(self) -> None:
        """Write what was gathered."""
        if self._frames and self._io_writer is not None:
            frames, self._frames, self.gathered_bytes = self._frames, [], 0
            self._io_writer.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def forget(self) -> None:
        """Drop what was gathered and not written."""
        self._frames, self.gathered_bytes = [], 0

    def write(self, payload: bytes) -> None:
        """Write for nats-py, behind what was offered before."""
        self.flush()
        super().write(payload)  # type: ignore[no-untyped-call]

    def writelines(self, payload: list[bytes]) -> None:
        """Write for nats-py, behind what was offered before."""
        self.flush()
        super().writelines(payload)  # type: ignore[no-untyped-call]

    async def read(self, buffer_size: int) -> bytes:
        """Return what is nats-py's own of what came, b"" at the end."""
        while True:
            data: bytes = await super().read(buffer_size)
            if not data or self._heard is None:
                return data
            if rest := self._taken(data, self._heard):
                return rest

    def _taken(self, data: bytes, heard: Heard) -> bytes:
        """Take our answers out of the stream, and return the rest as far as it is complete."""
        if self._begun:
            self._begun += data
            if len(self._begun) < self._wanted:
                return b""
            data = bytes(self._begun)
            self._begun.clear()
        ours, skip = self._ours, len(self._ours)
        rest = b""
        at = self._wanted = 0
        while (end := data.find(_LINE, at)) >= 0:
            stop = end + 2
            mine = data.startswith(ours, at)
            if mine or data.startswith((b"MSG ", b"HMSG "), at):
                words = data[at + skip if mine else at : end].split()
                if words[-1].isdigit():
                    stop += int(words[-1]) + 2
                    if stop > len(data):
                        self._wanted = stop - at
                        break
                else:
                    # nats-py says what is wrong with it.
                    mine, stop = False, len(data)
                if mine:
                    heard(words[0], data[end + 2 : stop - 2])
                    at = stop
                    continue
            rest += data[at:stop]
            at = stop
        if at < len(data):
            self._begun += data[at:]
        return rest

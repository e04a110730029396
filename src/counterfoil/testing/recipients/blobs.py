"""A blob store: it takes bytes under a name once, and may keep only part of them."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, cast

from counterfoil.outcomes import Evidence, Failed
from counterfoil.testing.recipients.faulty import Faulty, ReplyLost, handler


class BlobStore(Faulty):
    """Takes bytes under a name that is not taken yet."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.blobs: dict[str, bytes] = {}
        self._truncate = 0

    @handler
    def put(self, ctx: Any, name: str, data: bytes) -> dict[str, Any]:
        """Store bytes, and return their reference.

        Raises:
            Failed: other bytes have this name.
        """
        what = {"name": name, "size": len(data)}
        return cast("dict[str, Any]", self.receive(ctx, what, lambda: self._store(name, data)))

    @handler
    def find(self, ctx: Any, name: str, data: bytes) -> dict[str, Any] | None:
        """Return the reference of these bytes if they are there; None for nothing, or only a part of them.

        Raises:
            Failed: other bytes have this name, so that ours can never be stored.
        """

        def find(shown: Any) -> Any:
            stored = self.blobs.get(name)
            if stored is None or not any(made.what.get("name") == name for made in shown):
                return None
            if stored == data:
                return reference(name, data)
            if data.startswith(stored):
                return None
            raise Failed(Evidence("other-content", status=412))

        return cast("dict[str, Any] | None", self.look(ctx, find))

    def truncate(self, times: int = 1) -> None:
        """Receive only the first half of the next bytes; the sender sees a lost reply."""
        self._truncate += times

    def put_foreign(self, name: str, data: bytes) -> None:
        """Store bytes as somebody else."""
        with self.lock:
            self.blobs[name] = data
            self.plant(reference(name, data), name=name, size=len(data))

    def _store(self, name: str, data: bytes) -> dict[str, Any]:
        if self._truncate:
            self._truncate -= 1
            self.blobs.setdefault(name, data[: len(data) // 2])
            raise ReplyLost("the connection broke in the middle of the bytes")
        stored = self.blobs.setdefault(name, data)
        if stored != data:
            raise Failed(Evidence("other-content", status=412))
        return reference(name, data)


def reference(name: str, data: bytes) -> dict[str, Any]:
    """Name bytes: the store's own proof of having them."""
    return {"name": name, "digest": f"sha256:{sha256(data).hexdigest()}", "size": len(data)}

"""Secrets by reference: named here, and read only when an operation that needs one is about to go out.

This is the one place outside `cli/` that reads the environment, and only where the caller's own code names the
variable (see `docs/decisions`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from counterfoil.errors import UsageError
from counterfoil.outcomes import Evidence, Rejected

BYTES_MAX: Final = 65_536


class Secret:
    """A secret by reference. What it stands for is never kept, recorded, shown or pickled.

    Args:
        source: `env:NAME`, `file:PATH` (one line end at its end is not part of it), or a callable without
            parameters that returns it; a callable must not block for long.

    Raises:
        UsageError: it is none of these. What was given is not repeated, in case it is the secret itself.
    """

    __slots__ = ("_source",)

    def __init__(self, source: str | Callable[[], str]) -> None:
        if isinstance(source, str):
            scheme, _, name = source.partition(":")
            if scheme not in ("env", "file") or not name or "\x00" in name or (scheme == "env" and "=" in name):
                raise UsageError(
                    "a Secret is a reference: 'env:NAME', 'file:PATH' or a callable; what was given is none of these",
                    hint="put the secret itself into a variable or a file, and name that",
                )
        elif not callable(source):
            raise UsageError(f"a Secret is 'env:NAME', 'file:PATH' or a callable, not a {type(source).__name__}")
        self._source = source

    def resolve(self) -> str:
        """Read the secret; call it last, and let go of what it returns.

        Raises:
            Rejected: it cannot be read, or is empty (`secret-unavailable`); nothing was sent.
        """
        trouble = "empty"
        found: Any = ""
        try:
            found = self._read()
        except Exception as error:  # noqa: BLE001 - its text may hold the secret, so only its type is kept
            trouble = type(error).__name__
        if isinstance(found, str) and found:
            return found
        if not isinstance(found, str):
            trouble = "unset" if found is None else f"returned-{type(found).__name__}"
        # Outside the handler above, so that nothing that may hold the secret is this error's context. The reference is
        # none: it says which one.
        details = {"trouble": trouble} | ({"secret": self._source} if isinstance(self._source, str) else {})
        raise Rejected(Evidence("secret-unavailable", phase="not-dispatched", bytes_offered=0, details=details))

    def _read(self) -> Any:
        source = self._source
        if not isinstance(source, str):
            return source()
        scheme, _, name = source.partition(":")
        if scheme == "env":
            return os.environ.get(name)
        with Path(name).open("rb") as file:
            text = file.read(BYTES_MAX + 1)
        if len(text) > BYTES_MAX:
            raise ValueError
        return text.removesuffix(b"\n").removesuffix(b"\r").decode()

    def __repr__(self) -> str:
        return f"Secret({self._source!r})" if isinstance(self._source, str) else "Secret(<callable>)"

    def __reduce__(self) -> tuple[Any, ...]:
        if not isinstance(self._source, str):
            raise TypeError("a Secret made of a callable cannot be pickled")
        return Secret, (self._source,)

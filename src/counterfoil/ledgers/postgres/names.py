"""Names inside the database: the ledger's schema, quoted, and what is derived from it."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from counterfoil.errors import UsageError

_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_-]{0,62}")


def quoted(schema: str) -> str:
    """Quote a schema's name.

    Raises:
        UsageError: PostgreSQL could not keep it.
    """
    if not _NAME.fullmatch(schema):
        raise UsageError(
            f"{schema!r} cannot name the ledger's schema",
            hint="1 to 63 letters, digits, underscores and hyphens; not a digit first",
        )
    if schema.startswith("pg_") or schema == "information_schema":
        raise UsageError(f"the schema {schema!r} belongs to PostgreSQL", hint="name another")
    return f'"{schema}"'


def channel(schema: str) -> str:
    """Name the channel on which processes tell each other that there is something new."""
    return f"counterfoil_{_digest(schema).hex()}"


def lock_key(schema: str) -> int:
    """Choose the advisory lock that serialises migrations."""
    return int.from_bytes(_digest(schema), "big", signed=True)


def _digest(schema: str) -> bytes:
    return blake2b(schema.encode(), digest_size=8, person=b"counterfoil-pg").digest()

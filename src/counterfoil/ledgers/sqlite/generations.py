"""Whether this database is the one it was: its generation against the one kept beside it.

The generation advances in the database first and in the file after it. So a file that is ahead, or missing
beside an old ledger, means that the database went back in time. A snapshot that holds the file too cannot be
told from the original.
"""

from __future__ import annotations

from typing import Final

from counterfoil.errors import LedgerReadOnly
from counterfoil.ledgers.sqlite.beside import Beside
from counterfoil.ledgers.sqlite.engines import Connection

_GENERATION: Final = "SELECT generation FROM counterfoil_ledger WHERE id = 1"


class Generations:
    """Compares the generation in the database with the one beside it.

    Args:
        beside: the folder beside the database.

    Attributes:
        known: the newest generation that this process has seen.
    """

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self.known = 0
        self._reason: str | None = None
        self._looked = False

    def present(self, connection: Connection) -> int:
        """Return the generation in the database."""
        return int(connection.execute(_GENERATION)[0][0])

    def look(self, connection: Connection) -> None:
        """Judge anew, inside a write transaction: nobody advances the generation meanwhile."""
        present = self.present(connection)
        if self._reason is not None or not self._looked or present < self.known:
            self._reason = self.judge(present, self._beside.generation())
            self._looked = True
        if self._reason is None:
            self.known = max(self.known, present)

    def judge(self, present: int, kept: int | None) -> str | None:
        """Return why a ledger of generation `present` must be accepted by a person first, or None.

        Args:
            present: in the database, read after `kept`.
            kept: in the file, None if there is none.
        """
        if kept is None and present > 0:
            return f"{self._beside.folder} does not say which generation this ledger has"
        newest = max(kept or 0, self.known)
        if newest > present:
            return f"the database is of generation {present}, but {newest} was seen already"
        return None

    def sound(self) -> int | None:
        """Return the newest generation that was looked at, None where nobody has looked or it must be accepted."""
        return self.known if self._looked and self._reason is None else None

    def refuse(self) -> None:
        """Raise if a person must accept the ledger first.

        Raises:
            LedgerReadOnly: it went back in time.
        """
        if self._reason is not None:
            raise LedgerReadOnly(
                f"this ledger went back in time: {self._reason}",
                code="ledger-restored",
                hint=f"look at what was lost, then run `{self._beside.accepting()}`",
            )

    def advanced(self, generation: int) -> None:
        """Take note of a generation that this process has committed."""
        self.known = max(self.known, generation)

    def accepted(self, generation: int) -> None:
        """Take note that a person accepted the ledger in this generation."""
        self.known = generation
        self._reason = None

"""What is known of the lives of other processes, as far as the ledger knows lives at all."""

from __future__ import annotations

from collections.abc import Iterable

from counterfoil.errors import LedgerError, LedgerUnavailable
from counterfoil.ports.ledger import Owners


def proved_gone(owners: Owners | None, epoch: str) -> bool:
    """Whether a life is proved to be over; one that this ledger does not know is not.

    Raises:
        LedgerUnavailable: the ledger does not answer.
    """
    if owners is None:
        return False
    try:
        return owners.gone(epoch)
    except LedgerUnavailable:
        raise
    except LedgerError:
        return False


def any_silent(owners: Owners | None, lives: Iterable[str]) -> bool:
    """Whether one of these lives has fallen silent: where nothing proves at once that it is over, that soon will be."""
    among = set(lives)
    return owners is not None and bool(among) and any(one.epoch in among and not one.alive for one in owners.owners())

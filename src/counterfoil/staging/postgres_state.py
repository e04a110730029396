"""Whether a connection of the caller's leads to the database that the outbox is in, whatever its driver."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary

from counterfoil.errors import UsageError
from counterfoil.ports.outbox_store import Staging

# `to_regclass` does not raise, which would end the caller's transaction.
_THERE: Final = "SELECT to_regclass(%s::text)::text"
_PLACE: Final = "SELECT system_identifier, database::bigint FROM :schema.ledger"

_seen: WeakKeyDictionary[Any, object] = WeakKeyDictionary()


def check_kind(ledger: Any) -> None:
    """Check that the ledger is one of PostgreSQL.

    Raises:
        UsageError: it is not.
    """
    if getattr(ledger, "schema", None) is None:
        raise UsageError(
            "this connection is one of PostgreSQL, the ledger is not",
            hint="stage through the ledger's own database",
        )


def placing(connection: Any, ledger: Any) -> Staging:
    """Check, once for each connection, that it leads to the ledger's own database, as statements to run there.

    Raises:
        UsageError: it leads elsewhere; its transaction stays usable.
    """
    try:
        if _seen.get(connection) == ledger.place:
            return []
    except TypeError:
        # What cannot be remembered is asked each time.
        pass
    schema = ledger.quoted
    ((found,),) = yield _THERE, (f"{schema}.intent",)
    place = None
    if found is not None:
        ((system, database),) = yield _PLACE.replace(":schema", schema), ()
        place = ("postgresql", system, database, ledger.schema)
    if place != ledger.place:
        raise UsageError(
            "this connection leads to another database than the outbox; nothing was staged",
            hint="the intent has to commit with your rows: use one database for both",
        )
    with suppress(TypeError):
        _seen[connection] = place
    return []

"""Serving `Transact`: the body of the user inside the ledger's own transaction, in both colours the same.

Under `AsyncRuntime` it runs in a worker thread. An SQLAlchemy `Connection` can be put over the driver's; SQLAlchemy is
imported when that is first asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from counterfoil.effects.scope import Scope
from counterfoil.errors import UsageError
from counterfoil.ports.transacting import Transacting, under_way
from counterfoil.protocol import slots
from counterfoil.protocol.requests import Filled, Raised, Transact
from counterfoil.runtime.session import Session

# hstore's type is looked up through the driver's own class, which a connection on loan is not.
_DIALECTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "sqlite3": ("sqlite+pysqlite", {}),
    "psycopg": ("postgresql+psycopg", {"use_native_hstore": False}),
}


def transactable(session: Session) -> None:
    """Check that the ledger is in a database that the application can write to.

    Raises:
        UsageError: it is not.
    """
    if session.transactional is None:
        raise UsageError(
            f"{type(session.ledger).__name__} is not in a database of the application's, so nothing can be committed "
            "with its records",
            code="no-transactions",
            hint="keep the ledger in the application's own SQLite or PostgreSQL database",
        )


def transact(session: Session, scope: Scope, request: Transact) -> Filled | Raised:
    """Run the body and record its result in one commit; blocks."""
    ledger = session.transactional
    assert ledger is not None
    entry = session.entry(scope, request.draft, session.epoch_of(scope))
    (name,) = slots.names_in(entry.slot)
    raised: list[BaseException] = []

    def work(connection: Any) -> bytes:
        transacting = Transacting(connection, namespace=scope.namespace, run=scope.run, name=name)
        token = under_way.set(transacting)
        try:
            return request.receipt(_plain(request.body(connection)), transacting.staged)
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            under_way.reset(token)

    try:
        record = ledger.transact(entry, work)
    except BaseException as error:
        if error in raised:
            return Raised(error)
        session.refused(error, entry)
        raise
    return session.filled(scope, entry, record)


def _plain(value: Any) -> Any:
    if inspect.iscoroutine(value):
        value.close()
        raise UsageError("the body of the transaction returned a coroutine; it must do its work before it returns")
    return value


def through_sqlalchemy(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a body that takes the driver's connection out of one that takes SQLAlchemy's.

    Raises:
        UsageError: SQLAlchemy is not installed.
    """
    if find_spec("sqlalchemy") is None:
        raise UsageError(
            "connection='sqlalchemy' needs SQLAlchemy, which is not installed", hint="pip install sqlalchemy"
        )
    return partial(_through_sqlalchemy, body)


def _through_sqlalchemy(body: Callable[[Any], Any], connection: Any) -> Any:
    import sqlalchemy

    libraries = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    dialect = next((_DIALECTS[library] for library in _DIALECTS if library in libraries), None)
    if dialect is None:
        raise UsageError(
            f"SQLAlchemy has no dialect for connections of {type(connection).__module__}",
            hint="open the ledger with ?engine=sqlite3",
        )
    lent = _Lent(connection)
    name, options = dialect
    engine = sqlalchemy.create_engine(f"{name}://", creator=lambda: lent, poolclass=sqlalchemy.pool.NullPool, **options)
    with engine.connect() as over:
        # Begun for it: a session that joins an open transaction uses savepoints and leaves the transaction alone.
        over.begin()
        lent.guarded = True
        try:
            value = body(over)
        finally:
            lent.guarded = False
        return value


class _Lent:
    """A driver's connection as SQLAlchemy sees it: its transaction and its end are not SQLAlchemy's to decide.

    Attributes:
        lent_connection: the driver's own.
        guarded: whether the body has it now.
    """

    def __init__(self, connection: Any) -> None:
        self.lent_connection = connection
        self.guarded = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lent_connection, name)

    def commit(self) -> None:
        """Refuse the body's commit, and leave alone what SQLAlchemy does of its own accord."""
        if self.guarded:
            self.lent_connection.commit()

    def rollback(self) -> None:
        """Refuse the body's rollback, and leave alone what SQLAlchemy does of its own accord."""
        if self.guarded:
            self.lent_connection.rollback()

    def close(self) -> None:
        """Leave it open."""

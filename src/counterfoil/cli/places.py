"""Which ledger a command speaks of, and opening it without making one."""

from __future__ import annotations

import functools
import getpass
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from counterfoil.errors import LedgerUnavailable, UsageError
from counterfoil.ledgers.urls import MemoryUrl, NatsUrl, PostgresUrl, SqliteUrl, parse, without_password
from counterfoil.ports.ledger import Ledger
from counterfoil.runtime.sync import Runtime

Callback = TypeVar("Callback", bound=Callable[..., Any])

VARIABLE: Final = "COUNTERFOIL_LEDGER"
_HINT: Final = f"say --ledger sqlite:///effects.db, or set {VARIABLE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What every command is told.

    Args:
        target: the ledger's URL, or a ledger that the caller has open.
        namespace: the scope of run ids; None: the ledger's own.
        as_json: whether to write JSON.
        shown: whether payloads, proofs and results are shown.
        command: the command, for the owner's label.
    """

    target: str | Ledger | None
    namespace: str | None
    as_json: bool
    shown: bool
    command: str

    @contextmanager
    def open(self, *, create: bool = False) -> Generator[Runtime]:
        """Open the ledger. Looking at it registers no owner, records nothing and makes no file.

        Raises:
            UsageError: no ledger is named, or what is named cannot be one.
            LedgerUnavailable: there is no file at that place, or it cannot be opened.
        """
        with Runtime(self.checked(create=create), namespace=self.namespace, owner=self.label()) as runtime:
            yield runtime

    def checked(self, *, create: bool = False) -> str | Ledger:
        """Return the target, after a look whether there is a ledger.

        Raises:
            UsageError, LedgerUnavailable: as `open` does.
        """
        target = self.target
        if target is None:
            raise UsageError("no ledger is named", hint=_HINT)
        if isinstance(target, str) and not create:
            _present(target)
        return target

    def options(self) -> list[str]:
        """Return the options that another command needs to speak of the same ledger; a password is left out."""
        said = (
            ["--ledger", without_password(self.target)]
            if isinstance(self.target, str) and os.environ.get(VARIABLE) != self.target
            else []
        )
        return said if self.namespace is None else [*said, "--namespace", self.namespace]

    def label(self) -> str:
        """Return what this process calls itself as an owner."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError, ImportError):
            user = str(os.getuid())
        text = f"counterfoil {self.command} by {user}, pid {os.getpid()}"
        return text if text.isascii() and text.isprintable() else f"counterfoil {self.command}, pid {os.getpid()}"


def _present(target: str) -> None:
    """Check that a URL leads to a ledger, before opening it would make one."""
    url = parse(target)
    if isinstance(url, MemoryUrl):
        raise UsageError("memory: is a new ledger each time, with nothing in it to see", hint=_HINT)
    if isinstance(url, (PostgresUrl, NatsUrl)):
        url.check()
    if not isinstance(url, SqliteUrl):
        return
    path = Path(url.path)
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="name a file in it")
    if not path.exists():
        raise LedgerUnavailable(
            f"the ledger is unavailable: there is none at {path.resolve()}",
            hint="is the path right? A runtime makes it, or `counterfoil migrate`",
        )
    _migrated(url)


def _migrated(url: SqliteUrl) -> None:
    from counterfoil.ledgers.sqlite import engines, migrations

    try:
        connection = engines.connect(url.engine, url.path)
    except engines.StoreError:
        # Opening it as a ledger says why it cannot be opened.
        return
    try:
        version = migrations.LEDGER.version_of(connection)
    except engines.StoreError:
        return
    finally:
        connection.close()
    if version == 0:
        raise UsageError(f"{url.path} has no ledger in it", hint="a runtime makes it, or `counterfoil migrate`")
    if version < len(migrations.LEDGER.scripts):
        raise UsageError(f"the schema of {url.path} is older than this version", hint="run `counterfoil migrate`")


_LEDGER_HELP: Final = f"The ledger, for example sqlite:///effects.db; or set {VARIABLE}."
_NAMESPACE_HELP: Final = "The scope of the run ids; without it the ledger's own."
_JSON_HELP: Final = "Write JSON: times in seconds since 1970, everything outside ASCII escaped."
_SHOWN_HELP: Final = "Show payloads, proofs and results instead of redacting them."


def placed(function: Callback) -> Callback:
    """Give a command the options that all have, and the `Place` that they make as its first argument."""

    @click.option("--ledger", metavar="URL", help=_LEDGER_HELP)
    @click.option("--namespace", metavar="NAME", help=_NAMESPACE_HELP)
    @click.option("--json", "as_json", is_flag=True, help=_JSON_HELP)
    @click.pass_context
    @functools.wraps(function)
    def wrapped(context: click.Context, /, **given: Any) -> Any:
        root = context.find_root()
        ledger, namespace = given.pop("ledger"), given.pop("namespace")
        place = Place(
            target=ledger or root.params.get("ledger") or root.obj,
            namespace=namespace or root.params.get("namespace"),
            as_json=given.pop("as_json") or bool(root.params.get("as_json")),
            shown=bool(given.pop("shown", False)),
            command=str(context.info_name),
        )
        return function(place, **given)

    return wrapped  # type: ignore[return-value]


def showing(function: Callback) -> Callback:
    """Give a command `--show-payloads`."""
    return click.option("--show-payloads", "shown", is_flag=True, help=_SHOWN_HELP)(function)


def schema_sql(target: object, *, outbox: bool = False) -> str:
    """Return the migrations of a ledger, or of its outbox, as SQL of the store that its URL names."""
    url = parse(target) if isinstance(target, str) else None
    if isinstance(url, PostgresUrl):
        from counterfoil.ledgers.postgres import migrations as postgres

        return (postgres.OUTBOX if outbox else postgres.LEDGER).sql(url.schema)
    if isinstance(url, NatsUrl):
        raise UsageError("a ledger on JetStream has no schema", hint="its stream is made when a runtime opens it")
    from counterfoil.ledgers.sqlite import migrations as sqlite

    return (sqlite.OUTBOX if outbox else sqlite.LEDGER).sql()

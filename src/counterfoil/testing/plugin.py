"""The pytest plugin: fixtures `counterfoil_ledger`, `counterfoil_runtime`, `recipient` and `crash_points`.

The last two are `counterfoil_recipient` and `counterfoil_crash_points` too, for projects that have such names of their
own. pytest finds the plugin by itself where Counterfoil is installed. It imports nothing of the library until a
fixture is used or another ledger is chosen, and needs no other plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from counterfoil.ports.ledger import Ledger
    from counterfoil.runtime.sync import Runtime
    from counterfoil.testing.crash_points import Report

_LEDGER_HELP = (
    "The ledger of the Counterfoil fixtures: memory, sqlite (a fresh file), sqlite3 (the same by the standard "
    "library's engine), or a ledger's URL."
)
_NAMED = ("memory", "sqlite", "sqlite3")
_SEEDS_HELP = "Random trials with several faults at once that `crash_points` adds, N each."


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("counterfoil")
    group.addoption("--counterfoil-ledger", metavar="LEDGER", default="memory", help=_LEDGER_HELP)
    group.addoption("--counterfoil-seeds", metavar="N", type=int, default=0, help=_SEEDS_HELP)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a ledger that there is not once, and not in each test."""
    chosen = str(config.getoption("--counterfoil-ledger"))
    if chosen in _NAMED:
        return
    from counterfoil.errors import UsageError
    from counterfoil.ledgers.urls import parse

    try:
        parse(chosen)
    except UsageError as error:
        raise pytest.UsageError(f"--counterfoil-ledger: {error}") from None


@pytest.fixture
def counterfoil_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> str | Ledger:
    """A fresh ledger to make runtimes of, in either colour; all of one test share it."""
    chosen = str(request.config.getoption("--counterfoil-ledger"))
    if chosen in ("memory", "memory:"):
        from counterfoil.ledgers.memory import MemoryLedger

        return MemoryLedger()
    if chosen in ("sqlite", "sqlite3"):
        engine = "?engine=sqlite3" if chosen == "sqlite3" else ""
        return f"sqlite:///{tmp_path / 'counterfoil.db'}{engine}"
    return chosen


@pytest.fixture
def counterfoil_runtime(counterfoil_ledger: str | Ledger) -> Iterator[Runtime]:
    """An open blocking `Runtime` on a fresh ledger."""
    from counterfoil.runtime.sync import Runtime

    with Runtime(counterfoil_ledger) as runtime:
        yield runtime


class RecipientFactory:
    """Makes faulty recipients, and knows those that it made."""

    def __init__(self, stack: ExitStack) -> None:
        self.made: list[Any] = []
        self._stack = stack

    def __call__(self, kind: Any = "payee", **settings: Any) -> Any:
        """Make a recipient.

        Args:
            kind: `payee`, `mail`, `decisions`, `blobs`, `http` (a payee behind HTTP, with its `url`), or a class.
            settings: its arguments: `lag_s`, `deduplicates`.
        """
        from counterfoil.errors import UsageError
        from counterfoil.testing import recipients

        kinds = {
            "payee": recipients.Payee,
            "mail": recipients.MailSink,
            "decisions": recipients.DecisionQueue,
            "blobs": recipients.BlobStore,
        }
        if kind == "http":
            served = self._stack.enter_context(recipients.HttpPayee(recipients.Payee(**settings)))
            self.made.append(served.payee)
            return served
        maker = kinds.get(kind) if isinstance(kind, str) else kind
        if maker is None:
            raise UsageError(f"there is no recipient {kind!r}", hint=f"one of {', '.join([*kinds, 'http'])}")
        made = maker(**settings)
        self.made.append(made)
        return made


@pytest.fixture
def counterfoil_recipient() -> Iterator[RecipientFactory]:
    """Makes recipients that misbehave when they are told to: `recipient("mail", lag_s=5.0)`."""
    with ExitStack() as stack:
        yield RecipientFactory(stack)


@pytest.fixture
def recipient(counterfoil_recipient: RecipientFactory) -> RecipientFactory:
    """The same as `counterfoil_recipient`, by its short name."""
    return counterfoil_recipient


@pytest.fixture
def counterfoil_crash_points(
    request: pytest.FixtureRequest, counterfoil_recipient: RecipientFactory
) -> Callable[..., Report]:
    """Tries a body at every crash point; see `counterfoil.testing.crash_points.crash_points`.

    The recipients that the test made with `recipient` are known to it, and the ledger is that of the option.
    """
    from counterfoil.testing.crash_points import crash_points as try_body

    def call(body: Callable[..., Any], *args: Any, **settings: Any) -> Report:
        __tracebackhide__ = True
        settings.setdefault("recipients", list(counterfoil_recipient.made))
        settings.setdefault("ledger", str(request.config.getoption("--counterfoil-ledger")))
        settings.setdefault("seeds", range(request.config.getoption("--counterfoil-seeds") or 0))
        return try_body(body, *args, **settings)

    return call


@pytest.fixture
def crash_points(counterfoil_crash_points: Callable[..., Report]) -> Callable[..., Report]:
    """The same as `counterfoil_crash_points`, by its short name."""
    return counterfoil_crash_points

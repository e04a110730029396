"""`counterfoil dispatch`: a dispatcher as a process of its own."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any, Final

import click

from counterfoil.cli.named import named
from counterfoil.cli.output import document, say
from counterfoil.cli.places import Place, placed
from counterfoil.errors import UsageError
from counterfoil.runtime.dispatcher import Dispatcher
from counterfoil.runtime.raised import raised_at

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@click.command()
@click.argument("recipients", metavar="MODULE:RECIPIENTS...", nargs=-1, required=True)
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=64, show_default=True, help="Handlers at once.")
@click.option("--batch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Claims in hand.")
@click.option("--poll", "poll_s", type=click.FloatRange(0.01), default=0.2, show_default=True, metavar="SECONDS")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.01), default=60.0, show_default=True, metavar="SECONDS")
@click.option(
    "--drain", "drain_timeout_s", type=click.FloatRange(0), default=30.0, show_default=True, metavar="SECONDS"
)
@click.option("--until-idle", is_flag=True, help="End when nothing is due.")
@placed
def dispatch(place: Place, *, recipients: tuple[str, ...], until_idle: bool, **given: Any) -> None:
    """Deliver staged intents, until told to end.

    RECIPIENTS is a recipient, a list or mapping of them, or a function that returns one of these; MODULE may be
    a file. Any number of these processes share the work. SIGTERM and SIGINT drain: nothing more is taken, and what
    is in hand is finished.
    """
    known = [one for target in recipients for one in _recipients(target)]
    with place.open() as runtime, Dispatcher(runtime, known, owner=place.label(), **given) as dispatcher:

        def end(_number: int, _frame: FrameType | None) -> None:
            dispatcher.stop()

        before = {number: signal.signal(number, end) for number in _SIGNALS}
        try:
            if until_idle:
                dispatcher.run_until_idle()
            else:
                dispatcher.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        counts = dispatcher.counts
    if place.as_json:
        document({"ended": counts})
    else:
        say(", ".join(f"{count} {phase}" for phase, count in sorted(counts.items())) or "nothing was due")


def _recipients(target: str) -> Iterable[Any]:
    found = named(target, what="recipients", example="shop.mail:mail")
    if hasattr(found, "settings"):
        raise UsageError(f"{target!r} is an operation", hint="name its recipient")
    if callable(found) and not hasattr(found, "restore"):
        try:
            found = found()
        except Exception as error:
            where = raised_at(error)
            said = f"{f'{where}: ' if where else ''}{type(error).__name__}: {error}"
            raise UsageError(f"the function {target!r} gives no recipients: {said}") from error
    if found is None:
        raise UsageError(f"there are no recipients at {target!r}", hint="for example shop.mail:mail")
    if isinstance(found, Mapping):
        return found.values()
    return found if isinstance(found, (list, tuple)) else [found]

"""Spans of OpenTelemetry for calls that really happen, where the application has loaded it.

OpenTelemetry is looked up among the loaded modules and never imported: an application that wants telemetry has loaded
it, to say where it goes, and any other pays for a look into a dictionary. What goes in is names, keys, slugs and
numbers. No payload, argument, proof or text of an error does.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Self

from counterfoil.errors import CounterfoilError
from counterfoil.outcomes import Accepted, Failed, Rejected, Uncertain

SCOPE: Final = "counterfoil"
_TRACE: Final = "opentelemetry.trace"


def traced() -> bool:
    """Say whether the application has loaded OpenTelemetry's tracing."""
    return _TRACE in sys.modules


def loaded(name: str) -> Any:
    """Return a module of OpenTelemetry's API (`trace`, `metrics`), None where the application has not loaded it."""
    return sys.modules.get(f"opentelemetry.{name}")


class Called:
    """What a span of a call is told; nothing where nothing is traced."""

    __slots__ = ("_span",)

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def over(self, found: Any) -> Any:
        """Say what it came to; returns it."""
        if self._span is not None and isinstance(found, (Accepted, Rejected, Failed, Uncertain)):
            self._span.set_attribute("counterfoil.outcome", type(found).__name__.lower())
            if isinstance(found, Accepted):
                self._span.set_attribute("counterfoil.via", found.via)
            else:
                self._span.set_attribute("counterfoil.reason", found.evidence.kind)
            if isinstance(found, (Failed, Uncertain)):
                self._span.set_status(loaded("trace").StatusCode.ERROR)
        return found


_NOT_CALLED: Final = Called()


def calling(what: str, attributes: dict[str, str]) -> AbstractContextManager[Called]:
    """Trace a call that really happens: a step, an effect, a transaction, an immediate operation."""
    trace = loaded("trace")
    return _NOT_CALLED if trace is None else _traced(trace, what, attributes)


@contextmanager
def _traced(trace: Any, what: str, attributes: dict[str, str]) -> Generator[Called]:
    with trace.get_tracer(SCOPE).start_as_current_span(
        f"counterfoil {what}", attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield Called(span)
        except BaseException as error:
            raised(trace, span, error)
            raise


def raised(trace: Any, span: Any, error: BaseException) -> None:
    """Say on a span what was raised: by its type, since its text may hold what was to be sent."""
    span.set_attribute("error.type", type(error).__qualname__)
    reason = getattr(error, "reason", None) if isinstance(error, CounterfoilError) else None
    if reason is not None:
        span.set_attribute("counterfoil.reason", reason)
    span.set_status(trace.StatusCode.ERROR)


def of_run(scope_run: str, kind: str, name: str) -> dict[str, str]:
    """Return the attributes of a call for a name in a run."""
    return {"counterfoil.run": scope_run, "counterfoil.kind": kind, "counterfoil.name": name}

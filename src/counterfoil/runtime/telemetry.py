"""What an outbox tells of itself: spans from staging to the receipt, a counter and gauges, and lines in the log.

See `counterfoil.runtime.tracing` for what goes in and what does not.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, Self
from weakref import WeakMethod

from counterfoil.outbox.endings import NEEDS_OPERATOR, QUARANTINED
from counterfoil.ports.outbox_store import Claim, Ending, NewIntent
from counterfoil.runtime.tracing import SCOPE, loaded, raised

Read = Callable[[Any], list[tuple[float, dict[str, str]]]]
_log: Final = logging.getLogger("counterfoil")
_FOR_A_PERSON: Final = frozenset({NEEDS_OPERATOR, QUARANTINED})
# Of these a reader of a trace should see at once that not all is well.
_TROUBLES: Final = frozenset({"failed", "uncertain", "released", "parked"})


class Staged:
    """What a span of staging is told.

    Attributes:
        trace: the span as W3C `traceparent`, None where there is none.
    """

    __slots__ = ("_span", "trace")

    def __init__(self, span: Any = None) -> None:
        self._span = span
        self.trace = None if span is None else _traceparent(span.get_span_context())

    def over(self, made: Sequence[NewIntent]) -> None:
        """Say what was staged."""
        if self.trace is None:
            return
        self._span.set_attribute("counterfoil.intents", len(made))
        if len(made) == 1:
            self._span.set_attributes(_of_intent(made[0]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


_NOT_TRACED: Final = Staged()


def staging() -> contextlib.AbstractContextManager[Staged]:
    """Trace the staging of intents: the span of their sending is linked with this one, whenever that is."""
    trace = loaded("trace")
    return _NOT_TRACED if trace is None else _staging(trace)


@contextlib.contextmanager
def _staging(trace: Any) -> Generator[Staged]:
    tracer = trace.get_tracer(SCOPE)
    with tracer.start_as_current_span(
        "counterfoil stage", kind=trace.SpanKind.PRODUCER, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield Staged(span)
        except BaseException as error:
            raised(trace, span, error)
            raise


class Watcher:
    """Tells of the claims of one dispatcher: spans, a counter, and a line in the log where a person is needed."""

    def __init__(self) -> None:
        self._trace = loaded("trace")
        self._tracer = None if self._trace is None else self._trace.get_tracer(SCOPE)
        metrics = loaded("metrics")
        self._ended = None
        if metrics is not None:
            meter = metrics.get_meter(SCOPE)
            self._ended = meter.create_counter("counterfoil.outbox.ended", unit="{claim}", description="Claims, by end")

    def begin(self, claim: Claim) -> Any:
        """Begin the span of a claim, linked with that of its staging; None where nothing is traced."""
        trace = self._trace
        if self._tracer is None:
            return None
        staged = _context_of(trace, claim.trace)
        kind = trace.SpanKind.CONSUMER if claim.kind == "send" else trace.SpanKind.CLIENT
        return self._tracer.start_span(
            f"counterfoil {claim.kind} {claim.recipient}.{claim.operation}",
            # What the dispatcher itself runs in has nothing to do with it.
            context=loaded("context").Context(),
            kind=kind,
            links=[trace.Link(staged)] if staged is not None else [],
            attributes={**_of_intent(claim), "counterfoil.attempt": max(1, claim.standing.claims)},
        )

    def scope(self, span: Any) -> contextvars.Context | None:
        """Return what a handler runs in, so that its own spans are inside this one."""
        if span is None:
            return None
        scope = contextvars.copy_context()
        scope.run(self._enter, span)
        return scope

    def end(self, span: Any, ending: Ending, *, recorded: bool) -> None:
        """End the span: how the claim ended is durable, or was recorded otherwise before."""
        claim, requeue = ending.claim, ending.requeue
        phase = ending.phase if recorded else "late"
        reason = None if requeue is None else requeue.reason
        if self._ended is not None:
            self._ended.add(1, {"counterfoil.recipient": claim.recipient, "counterfoil.phase": phase})
        if span is not None:
            span.set_attribute("counterfoil.phase", phase)
            if reason is not None:
                span.set_attribute("counterfoil.reason", reason)
            if phase in _TROUBLES:
                span.set_status(self._trace.StatusCode.ERROR)
            span.end()
        state = phase if requeue is None else requeue.state
        if recorded and (state == "uncertain" or state in _FOR_A_PERSON):
            _log.warning(
                "intent %r for %s.%s is %s%s: a person has to look at it",
                claim.key,
                claim.recipient,
                claim.operation,
                state,
                f" ({reason})" if reason else "",
                extra={"counterfoil": {**_of_intent(claim), "counterfoil.state": state, "counterfoil.reason": reason}},
            )

    def _enter(self, span: Any) -> None:
        loaded("context").attach(self._trace.set_span_in_context(span))


def unavailable(error: Exception, *, pause_s: float) -> None:
    """Log that the store could not be reached; once for as long as that lasts."""
    _log.warning(
        "the outbox cannot be worked on (%s); nothing is claimed meanwhile, and it is tried again every %g s at most",
        getattr(error, "code", type(error).__qualname__),
        pause_s,
        extra={"counterfoil": {"counterfoil.code": getattr(error, "code", None)}},
    )


def lost(epoch: str) -> None:
    """Log that others took this dispatcher for gone."""
    _log.warning(
        "dispatcher %s was taken for gone (it was suspended, or too slow); it goes on as a new one",
        epoch,
        extra={"counterfoil": {"counterfoil.epoch": epoch}},
    )


def gauges(snapshot: WeakMethod[Callable[[], Any]]) -> None:
    """Have the gauges of an outbox reported; its `snapshot` is taken whenever metrics are collected."""
    meter = loaded("metrics").get_meter(SCOPE)
    observation = loaded("metrics").Observation

    def observing(read: Read) -> Callable[[Any], Any]:
        def observe(_options: Any) -> list[Any]:
            taken = snapshot()
            return [] if taken is None else [observation(value, labels) for value, labels in read(taken())]

        return observe

    def waiting(seen: Any) -> list[tuple[float, dict[str, str]]]:
        return [
            (count, {"counterfoil.recipient": recipient, "counterfoil.state": state})
            for recipient, states in seen.waiting.items()
            for state, count in states.items()
        ]

    reading: tuple[tuple[str, str, Read], ...] = (
        ("waiting", "{intent}", waiting),
        ("lag", "s", lambda seen: [(seen.lag_s, {})]),
        ("uncertain", "{intent}", lambda seen: [(seen.uncertain, {})]),
        ("oldest_uncertain", "s", lambda seen: [(seen.oldest_uncertain_s or 0.0, {})]),
        ("stuck_lanes", "{lane}", lambda seen: [(seen.stuck_lanes, {})]),
    )
    for name, unit, read in reading:
        meter.create_observable_gauge(f"counterfoil.outbox.{name}", callbacks=[observing(read)], unit=unit)


def _of_intent(intent: NewIntent | Claim) -> dict[str, str]:
    return {
        "counterfoil.recipient": intent.recipient,
        "counterfoil.operation": intent.operation,
        "counterfoil.key": intent.key,
        "counterfoil.effect_id": intent.effect_id,
    }


def _traceparent(context: Any) -> str | None:
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _context_of(trace: Any, traceparent: str | None) -> Any:
    """Read what `_traceparent` wrote, None where there is nothing to read."""
    parts = (traceparent or "").split("-")
    if len(parts) != 4:
        return None
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:])
    except ValueError:
        return None
    return trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(flags))

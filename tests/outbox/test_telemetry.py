"""What an outbox says of itself: snapshots, structured logs, spans from staging to the receipt, metrics (N5, N6)."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from counterfoil import (
    UNASKABLE,
    Accepted,
    AsyncBroker,
    AsyncDispatcher,
    AsyncOutbox,
    Broker,
    Dispatcher,
    EffectUnresolved,
    Grant,
    Recipient,
    Runtime,
    UsageError,
)
from counterfoil.runtime import telemetry
from tests.outbox.lives import Life
from tests.outbox.shop import ACT, Shop
from tests.support import PATIENCE_S, Colour

trace = pytest.importorskip("opentelemetry.trace")
sdk = pytest.importorskip("opentelemetry.sdk.trace")

SECRET = "s3cret-p4yload"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Collects the spans that the library makes, as an application that has set a provider would."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    collected, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(collected))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield collected
    provider.shutdown()


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import opentelemetry.metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(opentelemetry.metrics, "get_meter", provider.get_meter)
    yield reader
    provider.shutdown()


def read(reader: Any) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    data = reader.get_metrics_data()
    return {
        metric.name: [(dict(point.attributes), point.value) for point in metric.data.data_points]
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def named(spans: Any, start: str) -> list[Any]:
    return [span for span in spans.get_finished_spans() if span.name.startswith(start)]


@pytest.mark.rule("N5")
def test_the_span_of_sending_is_linked_with_the_transaction_that_staged_it(lone: Shop, spans: Any) -> None:
    seen: list[Any] = []

    def performed(_ctx: Any) -> str:
        seen.append(trace.get_current_span().get_span_context())
        return "mail-1"

    lone.box.does["bo"] = performed
    tracer = trace.get_tracer("application")
    with tracer.start_as_current_span("order") as order:
        lone.order("bo")
    lone.dispatch()
    [staging], [sending] = named(spans, "counterfoil stage"), named(spans, "counterfoil send mail.send")
    assert staging.parent.span_id == order.get_span_context().span_id
    assert sending.parent is None
    assert [link.context.span_id for link in sending.links] == [staging.context.span_id]
    assert [link.context.trace_id for link in sending.links] == [order.get_span_context().trace_id]
    # What the handler traces is inside.
    assert [context.span_id for context in seen] == [sending.context.span_id]
    assert sending.attributes["counterfoil.phase"] == "accepted"
    assert sending.attributes["counterfoil.effect_id"] == staging.attributes["counterfoil.effect_id"]
    assert sending.attributes["counterfoil.key"] == "bo"


@pytest.mark.rule("N5")
async def test_on_a_loop_too(file: Shop, spans: Any) -> None:
    seen: list[Any] = []
    recipient = Recipient("mail")

    @recipient.operation(reconcile=UNASKABLE)
    async def send(to: str) -> str:
        seen.append(trace.get_current_span().get_span_context().span_id)
        return to

    async with AsyncOutbox(file.url) as outbox, AsyncDispatcher(file.url, [recipient]) as dispatcher:
        with file.transaction() as connection:
            await outbox.stage(connection, send(to="bo"), key="o1")
        assert await dispatcher.run_until_idle(timeout_s=PATIENCE_S)
        snapshot = dispatcher.snapshot()
        assert snapshot is not None
        assert snapshot.ended == {"accepted": 1}
        assert (await outbox.snapshot()).waiting == {}
    [sending] = named(spans, "counterfoil send")
    assert seen == [sending.context.span_id]
    assert len(sending.links) == 1


@pytest.mark.rule("N5", "N6")
def test_a_look_up_has_a_span_and_nothing_secret_is_in_any(
    lone: Shop, spans: Any, metrics: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def raising(_ctx: Any) -> None:
        raise ConnectionResetError(SECRET)

    lone.box.does[SECRET] = raising
    lone.order("o1", to=SECRET)
    with caplog.at_level(logging.DEBUG, "counterfoil"):
        lone.dispatch()
    [sending], [looking] = named(spans, "counterfoil send"), named(spans, "counterfoil look")
    assert sending.attributes["counterfoil.phase"] == "released"
    assert sending.attributes["counterfoil.reason"] == "run-raised"
    assert sending.status.status_code is trace.StatusCode.ERROR
    assert looking.attributes["counterfoil.phase"] == "parked"
    assert [link.context.span_id for link in looking.links] == [named(spans, "counterfoil stage")[0].context.span_id]
    said = "".join(span.to_json() for span in spans.get_finished_spans())
    said += "".join(str(record.__dict__) for record in caplog.records) + str(read(metrics))
    assert SECRET not in said
    assert "o1" in said


@pytest.mark.rule("N5")
def test_what_staging_raises_is_in_its_span_as_a_type_alone(file: Shop, spans: Any) -> None:
    with file.transaction() as connection, pytest.raises(UsageError):
        file.outbox.stage(connection, file.operation(SECRET), key="", lane=SECRET)
    [span] = named(spans, "counterfoil stage")
    assert span.attributes["error.type"] == "UsageError"
    assert SECRET not in span.to_json()


@pytest.mark.rule("N1", "N5")
def test_where_a_person_is_needed_a_structured_line_says_so_once(lone: Shop, caplog: pytest.LogCaptureFixture) -> None:
    lone.box.does["bo"] = lambda _ctx: 1 / 0
    lone.order("o1", to="bo", recipient="door")
    lone.order("o2", to="al")
    with caplog.at_level(logging.INFO, "counterfoil"):
        lone.dispatch()
    [record] = [r for r in caplog.records if hasattr(r, "counterfoil")]
    assert record.levelname == "WARNING"
    said = record.counterfoil
    assert (said["counterfoil.key"], said["counterfoil.recipient"], said["counterfoil.state"]) == (
        "o1",
        "door",
        "uncertain",
    )


@pytest.mark.rule("N1", "N5")
def test_a_snapshot_says_how_much_waits_how_late_and_how_old_the_uncertain_are(timed: Shop) -> None:
    timed.box.does["bo"] = lambda _ctx: 1 / 0
    timed.order("o1", to="bo", recipient="door")
    timed.order("o2", to="cy", recipient="person")
    timed.box.does["cy"] = lambda _ctx: 1 / 0
    timed.dispatch()
    timed.clock.advance(50.0)
    timed.order("o3", to="al")
    timed.order("o4", to="di", not_before=timed.clock.time() + 500)
    timed.clock.advance(20.0)
    seen = timed.outbox.snapshot()
    assert seen.waiting == {"mail": {"pending": 2}, "person": {"needs-operator": 1}}
    assert seen.lag_s == pytest.approx(20.0, abs=1.0)
    assert seen.uncertain == 2
    assert seen.oldest_uncertain_s == pytest.approx(70.0, abs=1.0)
    for key in ("o1", "o2"):
        version = timed.receipt(key).version
        timed.outbox.decide(key, did_not_happen=True, expect_version=version, **ACT)
    seen = timed.outbox.snapshot()
    assert (seen.uncertain, seen.oldest_uncertain_s) == (0, None)


def test_a_dispatcher_says_what_it_has_in_hand(lone: Shop) -> None:
    lone.order("bo")
    life = Life(lone, "mail")
    life.turn()
    seen = life.dispatcher.snapshot()
    assert seen is not None
    assert (seen.in_hand, seen.running, seen.ended) == (1, 1, {})
    life.settle()
    seen = life.dispatcher.snapshot()
    assert seen is not None
    assert (seen.in_hand, seen.running, seen.ended) == (0, 0, {"accepted": 1})
    assert Dispatcher(lone.url, [lone.recipients["mail"]]).snapshot() is None


@pytest.mark.rule("N5")
def test_metrics_count_by_outcome_and_gauge_what_waits(lone: Shop, metrics: Any) -> None:
    lone.box.does["bo"] = lambda _ctx: 1 / 0
    lone.order("bo", recipient="door")
    lone.order("al")
    lone.dispatch()
    lone.order("cy")
    lone.outbox.report_gauges()
    found = read(metrics)
    ended = {(p["counterfoil.recipient"], p["counterfoil.phase"]): n for p, n in found["counterfoil.outbox.ended"]}
    assert ended == {("door", "uncertain"): 1, ("mail", "accepted"): 1}
    assert found["counterfoil.outbox.waiting"] == [
        ({"counterfoil.recipient": "mail", "counterfoil.state": "pending"}, 1)
    ]
    assert found["counterfoil.outbox.uncertain"][0][1] == 1
    assert found["counterfoil.outbox.oldest_uncertain"][0][1] >= 0
    assert found["counterfoil.outbox.lag"][0][1] >= 0


def test_gauges_without_opentelemetry_are_refused(file: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.metrics")
    with pytest.raises(UsageError, match="not loaded") as caught:
        file.outbox.report_gauges()
    assert caught.value.code == "missing-extra"


@pytest.mark.rule("N5")
def test_opentelemetry_is_never_imported_by_us(opens: Any) -> None:
    file = opens("apsw")
    file.order("bo")
    code = (
        "import sys\n"
        "from counterfoil import UNASKABLE, Dispatcher, Recipient\n"
        "mail = Recipient('mail')\n"
        "@mail.operation(reconcile=UNASKABLE)\n"
        "def send(to): return to\n"
        f"with Dispatcher({file.url!r}, [mail]) as dispatcher:\n"
        "    dispatcher.run_until_idle()\n"
        "    print(dispatcher.counts, [m for m in sys.modules if m.startswith('opentelemetry')])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "{'accepted': 1} []"


@pytest.mark.parametrize("text", [None, "", "00-1-2", "00-xx-yy-zz", "00-1-2-3-4"])
def test_a_trace_that_cannot_be_read_links_nothing(text: str | None) -> None:
    assert telemetry._context_of(trace, text) is None


def mail_of(seen: list[int], raised: Exception | None = None) -> Any:
    recipient = Recipient("mail")

    @recipient.operation(reconcile=UNASKABLE)
    def send(to: str) -> str:
        seen.append(trace.get_current_span().get_span_context().span_id)
        if raised is not None:
            raise raised
        return to

    return send


@pytest.mark.rule("N5")
@pytest.mark.parametrize("name", ["blocking", "asyncio"])
async def test_steps_and_effects_have_spans_once_with_what_the_handlers_trace_inside(spans: Any, name: str) -> None:
    seen: list[int] = []
    operation = mail_of(seen)(to=SECRET)
    async with Colour(name).life("memory:") as life, life.run("order-7") as run:
        for _ in range(2):
            await run.step("price", lambda: SECRET)
            await run.effect("mail", operation)
    [step], [effect] = named(spans, "counterfoil step"), named(spans, "counterfoil effect")
    assert seen == [effect.context.span_id]
    assert dict(effect.attributes) == {
        "counterfoil.run": "order-7",
        "counterfoil.kind": "effect",
        "counterfoil.name": "mail",
        "counterfoil.outcome": "accepted",
        "counterfoil.via": "run",
    }
    assert step.attributes["counterfoil.name"] == "price"
    assert SECRET not in step.to_json() + effect.to_json()


@pytest.mark.rule("N5", "N6")
def test_an_effect_without_an_outcome_says_why_and_not_with_what(spans: Any) -> None:
    operation = mail_of([], ValueError(SECRET))(to=SECRET)
    with Runtime("memory:") as runtime, runtime.run("order-7") as run:
        with pytest.raises(EffectUnresolved):
            run.effect("mail", operation)
        run.effect("mail", operation)
    first, second = named(spans, "counterfoil effect")
    assert (first.attributes["error.type"], first.attributes["counterfoil.reason"]) == (
        "EffectUnresolved",
        "run-failed",
    )
    assert second.attributes["counterfoil.outcome"] == "uncertain"
    assert {span.status.status_code for span in (first, second)} == {trace.StatusCode.ERROR}
    assert SECRET not in first.to_json() + second.to_json()


@pytest.mark.rule("N5")
async def test_an_immediate_operation_has_a_span(spans: Any) -> None:
    seen: list[int] = []
    operation, grant = mail_of(seen)(to=SECRET), Grant("mail", operations=("send",))
    with Broker() as broker, broker.activation(grants=[grant]) as activation:
        assert isinstance(activation.perform(operation), Accepted)
    async with AsyncBroker() as broker_, broker_.activation(grants=[grant]) as activation_:
        assert isinstance(await activation_.perform(operation), Accepted)
    found = named(spans, "counterfoil perform mail.send")
    assert seen == [span.context.span_id for span in found]
    assert [span.attributes["counterfoil.outcome"] for span in found] == ["accepted"] * 2
    assert SECRET not in "".join(span.to_json() for span in found)

"""The public face: names, parameters and defaults that other programs rely on, in both colours."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import counterfoil

# As a caller writes it; what is behind `*` is given by name. More than this may be taken, with defaults.
CALLS = {
    "Runtime": "url_or_ledger, *, namespace=None, owner=None, clock=None, drain_timeout=30.0",
    "Runtime.run": "run_id",
    "Runtime.runs": "",
    "Runtime.show": "run_id",
    "Runtime.execute": "run_id, body, *args",
    "Runtime.recover": "bodies",
    "Runtime.deliver": "run_id, event, id, payload=None",
    "Runtime.settle": "run_id, name, proof, *, key, source",
    "Runtime.effects": "*, state=None, run_id=None",
    "Runtime.decide": "run_id, name, *, happened=None, did_not_happen=False, reason, by, expect_version, new_name=None",
    "Run.step": "name, body, *, inputs=None, retry=None, result_type=None",
    "Run.effect": "name, operation=None, *, run=None, reconcile=None, request=None, wait=30.0, reconcile_timeout=30.0,"
    " visibility=0.0, verify=None, retry=None, proof_type=None",
    "Run.sleep": "seconds, *, name",
    "Run.wait_for": "event, id, *, timeout=None",
    "Run.deliver": "event, id, payload=None",
    "Run.settle": "name, proof, *, key, source",
    "Run.decision": "name, *, timeout=None",
    "Run.transaction": "name, body",
    "Run.finish": "result=None",
    "Run.cancel": "",
    "Broker": "runtime=None, *, policy=None, audit='off', concurrency=64",
    "Broker.activation": "*, principal='default', grants=(), budget=None, deadline_s=30.0",
    "Broker.report": "",
    "Activation.perform": "operation, *, timeout_s=None",
    "Activation.revoke": "",
    "Outbox": "url_or_runtime",
    "Outbox.migrate": "",
    "Outbox.nudge": "",
    "Outbox.stage": "connection, operation, *, key=None, lane=None, not_before=None, expires_at=None, policy=None",
    "Outbox.stage_many": "connection, intents",
    "Outbox.receipt": "key",
    "Outbox.wait": "key, *, timeout_s",
    "Dispatcher": "url_or_runtime, recipients, *, batch=100, concurrency=64, poll_s=0.2",
    "Dispatcher.run": "",
    "Dispatcher.run_until_idle": "*, timeout_s=None",
    "Dispatcher.stop": "",
    "Inbox": "url_or_runtime",
    "Inbox.once": "connection, source, message_id",
}
ONE_COLOUR = {
    "Accepted": "proof, via='run', evidence=ANY",
    "Rejected": "evidence",
    "Failed": "evidence, *, retryable=False",
    "Uncertain": "evidence",
    "Evidence": "kind, *, phase=None, bytes_offered=None, status=None, contract=None, promises=(), details=None",
    "Retry": "attempts, *, within_s=None, backoff_s=0.0, backoff_max_s=60.0",
    "Recipient": "name",
    "Grant": "recipient, *, operations, targets=(), allow_addresses=()",
    "Grant.attenuate": "*, operations=None, targets=None, allow_addresses=None",
    "Budget": "*, calls=None, bytes_out=None, bytes_in=None, in_flight=None",
    "Secret": "source",
    "HTTP": "name='http', *, base_url=None, contract=None, auth=None, headers=None, timeout_s=30.0",
    **{
        f"HTTP.{verb}": "url, *, json=None, content=None, headers=None, params=None"
        for verb in ("get", "post", "put", "patch", "delete")
    },
    "Contract.load": "path",
    "Events": "url, *, stream, name='events'",
    "Events.publish": "subject, payload, *, headers=None",
    "Blobs": "url, *, name='blobs'",
    "Blobs.writer": "*, size=None, media_type='application/octet-stream'",
    "Blobs.put": "source",
    "Blobs.reader": "reference, *, start=0, length=None",
    "Blobs.check": "reference",
    "Blobs.clean": "",
}
FIELDS = {
    "StagedIntent": "effect_id key",
    "Receipt": "key effect_id state outcome attempts reason late_evidence",
    "EffectView": "run_id name attempt state since age_s version outcome effect_key late_evidence decision",
}
ERRORS = (
    "UsageError NotSerializable NameConflict Conflict DeliveryConflict EffectUnresolved OwnerRetired LedgerUnavailable"
    " LedgerCorrupt LedgerReadOnly RunPruned ForkedLedger"
)
BOTH = [(f"{colour}{name}", call) for name, call in CALLS.items() for colour in ("", "Async")]


def parameters(found: Any, *, bound: bool) -> list[inspect.Parameter]:
    return list(inspect.signature(found).parameters.values())[bound:]


@pytest.mark.parametrize(("name", "call"), [*BOTH, *ONE_COLOUR.items()])
def test_a_call_is_taken_as_it_is_pinned(name: str, call: str) -> None:
    owner, _, method = name.partition(".")
    found: Any = getattr(counterfoil, owner)
    if method:
        found = inspect.getattr_static(found, method)
        found = getattr(found, "__func__", found)
    here = {each.name: each for each in parameters(found, bound=bool(method))}
    wanted = parameters(eval(f"lambda {call}: None", {"ANY": ...}), bound=False)
    in_order = [each.name for each in wanted if each.kind is each.POSITIONAL_OR_KEYWORD]
    takes = [each.name for each in here.values() if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    assert takes[: len(in_order)] == in_order
    for each in wanted:
        assert each.default is ... or here[each.name].default == each.default
    for name in here.keys() - {each.name for each in wanted}:
        variable = here[name].kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        assert variable or here[name].default is not inspect.Parameter.empty, name


@pytest.mark.parametrize("name", FIELDS)
def test_what_is_returned_has_its_fields_in_order(name: str) -> None:
    found = getattr(counterfoil, name)
    assert list(found.__match_args__)[: len(FIELDS[name].split())] == FIELDS[name].split()


@pytest.mark.parametrize("name", ERRORS.split())
def test_every_error_says_what_was_sent_and_what_mends_it(name: str) -> None:
    found = getattr(counterfoil, name)
    assert issubclass(found, counterfoil.CounterfoilError)
    assert found.effect_ran in ("yes", "no", "unknown")
    assert found.code != counterfoil.CounterfoilError.code
    assert issubclass(counterfoil.UsageError, ValueError)


def test_all_names_are_there() -> None:
    assert sorted(name for name in counterfoil.__all__ if not hasattr(counterfoil, name)) == []
    assert {*(name.partition(".")[0] for name, _ in BOTH), *FIELDS, "UNASKABLE", "Keyed", "AsyncBlobs"} <= {
        *counterfoil.__all__
    }

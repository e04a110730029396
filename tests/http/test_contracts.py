"""Contracts: data that is checked when it is made, and read from TOML."""

import dataclasses

import pytest

from counterfoil import Contract, Keyed, LookUp, Proof, UsageError, When
from counterfoil.protocol.pointers import MISSING, find

TOML = """
name = "payments-1"
visibility_s = 10
retryable = [503]
promises = ["settlement-not-established"]
policy = "at-least-once-keyed"
resends = 3

[statuses]
402 = "failed"
503 = "failed"

[proof]
pointer = "/id"

[idempotency]
header = "Idempotency-Key"
horizon_s = 86400
concurrent = true

[look_up]
url = "/charges"
params = { reference = "{key}" }
items = "/data"
where = { "/metadata/key" = "{key}" }
proof = "/id"

[[when]]
status = 200
pointer = "/ok"
equals = false
means = "failed"
"""


def test_a_contract_comes_whole_out_of_toml(tmp_path):
    file = tmp_path / "payments.toml"
    file.write_text(TOML, encoding="utf-8")
    assert Contract.load(file) == Contract(
        name="payments-1",
        statuses={402: "failed", 503: "failed"},
        when=(When(status=200, pointer="/ok", equals=False, means="failed"),),
        proof=Proof(pointer="/id"),
        promises=("settlement-not-established",),
        idempotency=Keyed(header="Idempotency-Key", horizon_s=86_400, concurrent=True),
        visibility_s=10.0,
        look_up=LookUp(
            url="/charges", params={"reference": "{key}"}, items="/data", where={"/metadata/key": "{key}"}, proof="/id"
        ),
        retryable=[503],
        policy="at-least-once-keyed",
        resends=3,
    )


def test_shapes_may_be_given_as_plain_data():
    assert Contract(name="c", proof="/id").proof == Proof(pointer="/id")
    assert Contract(name="c", proof="").proof == Proof(pointer="")
    assert Contract(name="c", proof="Location").proof == Proof(header="Location")
    assert Contract(name="c", idempotency={"header": "X-Key"}).idempotency == Keyed(header="X-Key")
    assert Contract(name="c", look_up={"url": "/x"}).look_up == LookUp(url="/x")


@pytest.mark.rule("X7")
def test_the_policy_follows_from_what_is_known():
    keyed, asked = Keyed(header="X-Key", horizon_s=60.0), LookUp(url="/x")
    assert Contract(name="c").strongest_policy == "at-most-once"
    assert Contract(name="c", look_up=asked).strongest_policy == "reconcile-first"
    # A key alone enables nothing (rule B7).
    assert Contract(name="c", idempotency=keyed).strongest_policy == "at-most-once"
    assert Contract(name="c", idempotency=keyed, policy="at-least-once-keyed").strongest_policy == "at-least-once-keyed"
    assert Contract(name="c", look_up=asked, policy="operator-only").strongest_policy == "operator-only"


def test_retries_are_for_some_statuses_or_for_all():
    assert Contract(name="c", retryable=True).retries(400)
    assert not Contract(name="c").retries(400)
    assert [Contract(name="c", retryable=[503]).retries(code) for code in (503, 400)] == [True, False]


def test_a_contract_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Contract(name="c").name = "d"  # type: ignore[misc]


MISTAKES = {
    "": "needs name",
    'name = ""': "name",
    "name = 5": "name",
    'name = "c"\nstatus = 5': "has no status",
    'name = "c"\nstatuses = 5': "statuses is a table",
    'name = "c"\n[statuses]\n99 = "failed"': "200 to 599",
    'name = "c"\n[statuses]\n600 = "failed"': "200 to 599",
    'name = "c"\n[statuses]\nall = "failed"': "200 to 599",
    'name = "c"\n[statuses]\n402 = "rejected"': "accepted, failed, uncertain",
    'name = "c"\nproof = "not a header"': "name of a header",
    'name = "c"\nproof = 5': "proof is a table",
    'name = "c"\nproof = {}': "either pointer or header",
    'name = "c"\nproof = { pointer = "id" }': "JSON pointer",
    'name = "c"\nproof = { pointer = "/a~2" }': "JSON pointer",
    'name = "c"\nproof = { pointer = "/id", header = "Location" }': "either pointer or header",
    'name = "c"\nidempotency = {}': "needs header",
    'name = "c"\nidempotency = { header = "Content-Length" }': "connection itself",
    'name = "c"\nidempotency = { header = "X-Key", horizon_s = -1 }': "horizon_s",
    'name = "c"\nidempotency = { header = "X-Key", horizon = 5 }': "has no horizon",
    'name = "c"\nidempotency = { header = "X-Key", concurrent = 1 }': "true or false",
    'name = "c"\nvisibility_s = "10"': "visibility_s",
    'name = "c"\nvisibility_s = nan': "visibility_s",
    'name = "c"\nkeep_key = 1': "true or false",
    'name = "c"\nretryable = 503': "list of status codes",
    'name = "c"\nretryable = "503"': "list of status codes",
    'name = "c"\nretryable = [99]': "200 to 599",
    'name = "c"\nlook_up = {}': "needs url",
    'name = "c"\nlook_up = { url = "" }': "look_up.url",
    'name = "c"\nlook_up = { url = "/x", params = { a = 1 } }': "look_up.params",
    'name = "c"\nlook_up = { url = "/x", where = { id = 1 } }': "JSON pointer",
    'name = "c"\nlook_up = { url = "/x", items = "data" }': "JSON pointer",
    'name = "c"\nlook_up = { url = "/x", absent = [1] }': "200 to 599",
    'name = "c"\nlook_up = { url = "/x", headers = { Host = "a" } }': "connection itself",
    'name = "c"\nlook_up = { url = "/x", where = { "/at" = 1979-05-27 } }': "JSON",
    'name = "c"\nwhen = [{ status = 200 }]': "needs equals, means, pointer",
    'name = "c"\nwhen = { status = 200 }': "when",
    'name = "c"\npromises = "x"': "promises",
    'name = "c"\npromises = [1]': "promises",
    'name = "c"\npolicy = "hope"': "policy is one of",
    'name = "c"\npolicy = "reconcile-first"': "needs look_up",
    'name = "c"\npolicy = "at-least-once-keyed"': "needs idempotency",
    'name = "c"\nresends = 3': "resends",
    'name = "c"\nresends = -1': "resends",
    "name = ": "no TOML",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_a_contract_shows_at_the_start_and_says_where(tmp_path, text):
    file = tmp_path / "c.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        Contract.load(file)
    assert MISTAKES[text] in str(caught.value)
    assert "c.toml" in str(caught.value)
    assert (caught.value.code, caught.value.effect_ran) == ("bad-contract", "no")


def test_a_file_that_cannot_be_read_is_said_so(tmp_path):
    for place in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            Contract.load(place)
    with pytest.raises(UsageError, match="from a path"):
        Contract.load(3)  # type: ignore[arg-type]
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="no TOML"):
        Contract.load(str(tmp_path / "binary.toml"))


def test_pointers_are_followed_as_the_standard_says():
    document = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "m~n": 8, "0": {"x": None}}
    assert find(document, "") is document
    assert [find(document, at) for at in ("/foo/0", "/", "/a~1b", "/m~0n", "/0/x")] == ["bar", 0, 1, 8, None]
    assert all(find(document, at) is MISSING for at in ("/foo/2", "/foo/-", "/foo/01", "/foo/x", "/nothing", "/a~1b/c"))

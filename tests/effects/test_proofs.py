"""Proofs and results: lossless JSON or nothing, bounded, copied for each caller, decoded into a named type."""

from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from counterfoil import UNASKABLE, Accepted, EffectUnresolved, NotSerializable, UsageError
from tests.support import IN_MEMORY


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@dataclass
class Receipt:
    id: str
    amount: int


class ReceiptDict(TypedDict):
    id: str
    amount: int


class ReceiptStruct(msgspec.Struct):
    id: str
    amount: int


class ReceiptModel(pydantic.BaseModel):
    id: str
    amount: int


class Float(float):
    pass


NOT_JSON = {
    "nan": lambda: float("nan"),
    "infinity": lambda: {"x": float("inf")},
    "set": lambda: {1, 2},
    "frozenset": lambda: [frozenset()],
    "bytes": lambda: b"raw",
    "bytearray": lambda: bytearray(b"raw"),
    "tuple": lambda: (1, 2),
    "tuple inside": lambda: {"x": [(1,)]},
    "int key": lambda: {1: "x"},
    "none key": lambda: {None: "x"},
    "float key": lambda: {"x": {1.5: "x"}},
    "lone surrogate": lambda: "\ud800",
    "lone surrogate in a key": lambda: {"\udfff": 1},
    "2**63": lambda: 2**63,
    "-2**63-1": lambda: [-(2**63) - 1],
    "2**64": lambda: {"x": 2**64},
    "10**40": lambda: 10**40,
    "circle": circle,
    "depth 101": lambda: nested(101),
    "depth 5000": lambda: nested(5000),
    "object": object,
    "dataclass without its type": lambda: Receipt("r1", 5),
    "struct without its type": lambda: ReceiptStruct("r1", 5),
    "exception": lambda: ValueError("x"),
    "complex": lambda: 1j,
    "function": lambda: print,
}

JSON = {
    "null": None,
    "booleans": [True, False],
    "largest": 2**63 - 1,
    "smallest": -(2**63),
    "float": 0.1,
    "large float": 1e300,
    "small float": 5e-324,
    "negative zero": -0.0,
    "text": "é\u202e\U0001f600\u2028 \x00 \x1b[31m '\"%s</script>",
    "nul": "a\x00b",
    "empty": [{}, [], ""],
    "depth 100": nested(100),
    "keys": {"b": 1, "a": {"": None, "\u0000": 1}},
}


@pytest.fixture(params=sorted(NOT_JSON))
def not_json(request: pytest.FixtureRequest) -> Any:
    return NOT_JSON[request.param]


@IN_MEMORY
@pytest.mark.rule("E5", "L5", "E20")
async def test_what_run_returns_and_is_not_json_leaves_the_intent(make, payee, colour, not_json):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=colour.handler(not_json), reconcile=payee.never)
        assert (raised.value.reason, raised.value.effect_ran) == ("proof-rejected", "yes")
        assert [r.phase for r in life.records()] == ["intent", "late", "released"]
        (late,) = (await life.effects())[0].late_evidence
        assert (late.claims, late.via, late.proof) == ("refused", "run", None)
        assert late.digest


@IN_MEMORY
@pytest.mark.rule("E5", "L5", "E20")
async def test_what_reconcile_returns_and_is_not_json_leaves_the_intent(make, payee, colour, not_json):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        for _ in range(2):
            with pytest.raises(EffectUnresolved) as raised:
                await run.effect("pay", run=payee.never, reconcile=colour.handler(not_json))
            assert (raised.value.reason, raised.value.effect_ran) == ("proof-rejected", "unknown")
        assert (await life.effects())[0].state == "unresolved"
        assert {late.via for late in (await life.effects())[0].late_evidence} == {"reconcile"}
        outcome = await run.effect("pay", run=payee.never, reconcile=colour.handler(payee.find))
        assert outcome == Accepted("item-1", "reconcile")


@IN_MEMORY
@pytest.mark.rule("E5", "L5", "E18")
async def test_what_is_settled_and_is_not_json_is_refused_and_records_nothing(make, payee, colour, not_json):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(payee.pay_and_drop), reconcile=payee.never)
        before = len(life.records())
        with pytest.raises(NotSerializable):
            await run.settle("pay", not_json(), key=payee.requests[0], source="webhook")
        assert len(life.records()) == before


@IN_MEMORY
@pytest.mark.rule("L5", "S4")
async def test_what_is_not_json_is_refused_wherever_it_is_given(make, payee, not_json):
    async with make() as life, life.run("r") as run:
        with pytest.raises(NotSerializable):
            await run.effect("pay", run=payee.never, reconcile=UNASKABLE, request=not_json())
        with pytest.raises(NotSerializable):
            await run.step("sum", payee.never, inputs=not_json())
        with pytest.raises(NotSerializable):
            await run.step("sum", not_json)
        with pytest.raises(NotSerializable):
            await run.deliver("event", "1", not_json())
        with pytest.raises(NotSerializable):
            await run.finish(not_json())
        assert life.records() == []


@pytest.mark.rule("L5", "E1", "S1", "P2")
@pytest.mark.parametrize("value", JSON.values(), ids=JSON.keys())
async def test_json_comes_back_equal_from_every_ledger(make, colour, value):
    async with make() as life, life.run("r") as run:
        await run.effect("pay", run=colour.handler(lambda: value), reconcile=UNASKABLE)
        await run.step("sum", lambda: value)
        await run.deliver("event", "1", value)
    async with make() as life, life.run("r") as run:
        found = [
            (await run.effect("pay", run=print, reconcile=UNASKABLE)).proof,
            await run.step("sum", print),
            await run.wait_for("event", "1"),
        ]
    assert [repr(item) for item in found] == [
        repr(value) if not isinstance(value, dict) else repr(item) for item in found
    ]
    assert found == [value, value, value]


@pytest.mark.rule("E5")
@pytest.mark.parametrize(("length", "kept"), [(65_534, True), (65_535, False)])
async def test_a_proof_has_65536_bytes_of_json_at_most(make, payee, colour, length, kept):
    proof = "x" * length
    async with make() as life, life.run("r") as run:
        if kept:
            assert (await run.effect("pay", run=colour.handler(lambda: proof), reconcile=UNASKABLE)).proof == proof
        else:
            with pytest.raises(EffectUnresolved) as raised:
                await run.effect("pay", run=colour.handler(lambda: proof), reconcile=UNASKABLE)
            assert (raised.value.reason, raised.value.effect_ran) == ("proof-rejected", "yes")
            with pytest.raises(EffectUnresolved) as raised:
                await run.effect("pay", run=payee.never, reconcile=colour.handler(lambda: proof))
            assert (raised.value.reason, raised.value.effect_ran) == ("proof-rejected", "unknown")
            (view,) = await life.effects()
            with pytest.raises(NotSerializable):
                await run.settle("pay", proof, key=view.effect_key, source="webhook")
            assert len({late.digest for late in view.late_evidence}) == 1


@IN_MEMORY
@pytest.mark.rule("E5")
async def test_bytes_are_counted_not_characters(make, colour):
    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(lambda: "é" * 32_768), reconcile=UNASKABLE)


@IN_MEMORY
@pytest.mark.rule("E5")
async def test_an_object_whose_repr_raises_is_kept_as_a_digest_too(make, colour):
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError

    async with make() as life, life.run("r") as run:
        with pytest.raises(EffectUnresolved):
            await run.effect("pay", run=colour.handler(Hostile), reconcile=UNASKABLE)
        assert (await life.effects())[0].late_evidence[0].digest


@pytest.mark.rule("E1", "E2")
async def test_none_is_a_proof_from_run_and_nothing_from_reconcile(make, payee, colour):
    async with make() as life, life.run("r") as run:
        assert await run.effect("none", run=colour.handler(lambda: None), reconcile=UNASKABLE) == Accepted(None, "run")
    async with make() as life, life.run("r") as run:
        assert await run.effect("none", run=payee.never, reconcile=UNASKABLE) == Accepted(None, "run")


@pytest.mark.rule("E7", "S2")
async def test_each_caller_gets_a_copy_of_its_own(make, colour):
    async with make() as life, life.run("r") as run:
        calls = {"run": colour.handler(lambda: {"list": [1]}), "reconcile": UNASKABLE}
        first, second = await run.effect("pay", **calls), await run.effect("pay", **calls)
        first.proof["list"].append("mine")
        assert second.proof == {"list": [1]}
        assert (await run.effect("pay", **calls)).proof == {"list": [1]}
        one, two = await run.step("sum", lambda: [1]), await run.step("sum", lambda: [1])
        one.append("mine")
        assert two == [1]


TYPES = [
    pytest.param(Receipt, Receipt("r1", 5), id="dataclass"),
    pytest.param(ReceiptDict, {"id": "r1", "amount": 5}, id="TypedDict"),
    pytest.param(ReceiptStruct, ReceiptStruct("r1", 5), id="Struct"),
    pytest.param(ReceiptModel, ReceiptModel(id="r1", amount=5), id="pydantic"),
    pytest.param(list[Receipt], [Receipt("r1", 5)], id="list"),
    pytest.param(dict[str, Receipt], {"a": Receipt("r1", 5)}, id="dict"),
    pytest.param(Receipt | None, Receipt("r1", 5), id="union"),
    pytest.param(tuple[int, str], (1, "x"), id="tuple"),
    pytest.param(bytes, b"\xff\x00", id="bytes"),
]


@pytest.mark.rule("S1", "E1")
@pytest.mark.parametrize(("type_", "value"), TYPES)
async def test_results_and_proofs_are_decoded_into_the_type_that_the_call_names(make, colour, type_, value):
    async def both(run: Any, handler: Any) -> None:
        found = await run.step("sum", handler, result_type=type_)
        assert found == value
        assert type(found) is type(value)
        outcome = await run.effect("pay", run=handler, reconcile=UNASKABLE, proof_type=type_)
        assert outcome == Accepted(value, "run")
        assert type(outcome.proof) is type(value)

    async with make() as life, life.run("r") as run:
        await both(run, colour.handler(lambda: value))
    async with make() as life, life.run("r") as run:
        await both(run, colour.handler(lambda: pytest.fail("called again")))
        plain = await run.step("sum", print)
        assert isinstance(plain, (dict, list, str))


@IN_MEMORY
@pytest.mark.rule("S4", "E5")
@pytest.mark.parametrize("value", [object(), {"id": 1}, Receipt("r1", float("nan"))])  # type: ignore[arg-type]
async def test_what_does_not_fit_the_named_type_is_refused(make, colour, value):
    async with make() as life, life.run("r") as run:
        with pytest.raises(NotSerializable):
            await run.step("sum", lambda: value, result_type=Receipt)
        with pytest.raises(EffectUnresolved) as raised:
            await run.effect("pay", run=colour.handler(lambda: value), reconcile=UNASKABLE, proof_type=Receipt)
        assert raised.value.reason == "proof-rejected"


@IN_MEMORY
@pytest.mark.rule("S1")
async def test_a_record_that_does_not_fit_another_type_is_said_and_not_run_again(make, colour, payee):
    async with make() as life, life.run("r") as run:
        await run.step("sum", lambda: {"other": 1})
        with pytest.raises(NotSerializable):
            await run.step("sum", payee.never, result_type=Receipt)
        with pytest.raises(NotSerializable):
            await run.step("sum", payee.never, result_type=ReceiptModel)
        assert await run.step("sum", payee.never) == {"other": 1}


@IN_MEMORY
@pytest.mark.rule("E19", "E18")
async def test_verify_gets_the_proof_in_the_type_that_the_call_names(make, payee, colour):
    seen: list[Any] = []

    def check(proof: Any) -> bool:
        seen.append(proof)
        return True

    call = {"reconcile": payee.never, "verify": check, "proof_type": Receipt}
    async with make() as life, life.run("r") as run:
        await run.effect("pay", run=colour.handler(lambda: Receipt("r1", 5)), **call)
        assert seen == [Receipt("r1", 5)]
        with pytest.raises(EffectUnresolved):
            await run.effect("lost", run=colour.handler(payee.pay_and_drop), **call)
        with pytest.raises(EffectUnresolved) as raised:
            await run.settle("lost", "no receipt", key=payee.requests[-1], source="webhook")
        assert raised.value.reason == "proof-rejected"
        assert await run.settle("lost", {"id": "r2", "amount": 6}, key=payee.requests[-1], source="webhook")
        assert seen[-1] == Receipt("r2", 6)


@IN_MEMORY
@pytest.mark.rule("E6")
async def test_not_serializable_is_a_usage_error(make, payee):
    async with make() as life, life.run("r") as run:
        with pytest.raises(UsageError) as raised:
            await run.effect("pay", run=payee.never, reconcile=UNASKABLE, request={1})
        assert raised.value.effect_ran == "no"
        assert "set" not in str(raised.value) or "lossless" in str(raised.value)

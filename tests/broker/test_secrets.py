"""Secrets by reference: read at dispatch, and nowhere to be found afterwards."""

import copy
import json
import logging
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counterfoil import UNASKABLE, Grant, Recipient, Rejected, Secret, UsageError
from counterfoil.protocol import exported
from tests.broker.support import Desk, runtime_of
from tests.support import Colour, in_thread

pytestmark = pytest.mark.rule("B9")

PLANTED = "sk_live_planted_4711"


def test_the_environment_is_read_when_the_secret_is_needed_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret("env:COUNTERFOIL_TEST_SECRET")
    with pytest.raises(Rejected) as refused:
        secret.resolve()
    assert refused.value.evidence.kind == "secret-unavailable"
    assert refused.value.evidence.phase == "not-dispatched"
    assert refused.value.evidence.details == {"trouble": "unset", "secret": "env:COUNTERFOIL_TEST_SECRET"}
    monkeypatch.setenv("COUNTERFOIL_TEST_SECRET", PLANTED)
    assert secret.resolve() == PLANTED
    monkeypatch.setenv("COUNTERFOIL_TEST_SECRET", "rotated")
    assert secret.resolve() == "rotated"
    monkeypatch.setenv("COUNTERFOIL_TEST_SECRET", "")
    with pytest.raises(Rejected) as refused:
        secret.resolve()
    assert refused.value.evidence.details == {"trouble": "empty", "secret": "env:COUNTERFOIL_TEST_SECRET"}
    with pytest.raises(Rejected) as refused:
        Secret(lambda: None).resolve()  # type: ignore[arg-type,return-value]
    assert refused.value.evidence.details == {"trouble": "unset"}


@pytest.mark.parametrize(
    ("content", "found"),
    [(b"abc", "abc"), (b"abc\n", "abc"), (b"abc\r\n", "abc"), (b" a b \n\n", " a b \n"), ("ä".encode(), "ä")],
)
def test_a_file_is_read_without_the_line_end_at_its_end(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "secret").write_bytes(content)
    assert Secret(f"file:{tmp_path / 'secret'}").resolve() == found


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"x" * 70_000, None])
def test_a_file_that_holds_no_secret_is_rejected(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "secret").write_bytes(content)
    with pytest.raises(Rejected) as refused:
        Secret(f"file:{tmp_path / 'secret'}").resolve()
    assert refused.value.__context__ is None


def raising() -> Any:
    raise RuntimeError(PLANTED)


def interrupted() -> Iterator[str]:
    yield PLANTED


@pytest.mark.parametrize("source", [raising, lambda: None, lambda: b"bytes", lambda: "", interrupted])
def test_a_callable_that_gives_none_is_rejected_without_a_word_of_it(source: Any) -> None:
    with pytest.raises(Rejected) as refused:
        Secret(source).resolve()
    text = "".join(traceback.format_exception(refused.value))
    assert PLANTED not in text
    assert (refused.value.__context__, refused.value.__cause__) == (None, None)


@pytest.mark.parametrize("given", [PLANTED, "", "env:", "file:", "ENV:X", "env:A=B", f"env:A={PLANTED}", "env:A\x00"])
def test_what_is_no_reference_is_refused_and_not_repeated(given: str) -> None:
    with pytest.raises(UsageError) as refused:
        Secret(given)
    assert PLANTED not in "".join(traceback.format_exception(refused.value))


def test_a_secret_is_a_reference_or_a_callable() -> None:
    for wrong in (None, 3, b"env:X", ["env:X"]):
        with pytest.raises(UsageError):
            Secret(wrong)  # type: ignore[arg-type]


def test_a_secret_is_nowhere_but_in_what_resolve_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERFOIL_TEST_SECRET", PLANTED)
    referenced, called = Secret("env:COUNTERFOIL_TEST_SECRET"), Secret(lambda: PLANTED)
    for secret in (referenced, called):
        assert secret.resolve() == PLANTED
        for shown in (repr(secret), str(secret), f"{secret}", f"{secret!r:>80}"):
            assert PLANTED not in shown
        with pytest.raises(TypeError):
            json.dumps(secret)
        with pytest.raises(TypeError):
            vars(secret)
    assert repr(referenced) == "Secret('env:COUNTERFOIL_TEST_SECRET')"
    pickled = pickle.dumps(referenced)
    assert PLANTED.encode() not in pickled
    assert pickle.loads(pickled).resolve() == PLANTED
    assert copy.deepcopy(referenced).resolve() == PLANTED
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(called)


async def test_a_planted_secret_is_in_no_record_export_log_repr_or_exception(
    colour: Colour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COUNTERFOIL_TEST_SECRET", PLANTED)
    caplog.set_level(logging.DEBUG)
    secret = Secret("env:COUNTERFOIL_TEST_SECRET")
    bank = Recipient("bank")
    used: list[str] = []

    @bank.operation(reconcile=UNASKABLE)
    def pay(amount: int) -> str:
        used.append(secret.resolve())
        if amount < 0:
            raise ConnectionError(f"401 for {used[-1]}")
        return "payment-1"

    runtime: Any = runtime_of(colour, f"sqlite:///{tmp_path}/ledger.db")
    await (in_thread(runtime.__enter__) if colour.blocking else runtime.__aenter__())
    desk = Desk.make(colour, runtime, audit="required")
    shown: list[str] = []
    async with desk.activation(grants=[Grant("bank", operations=("pay",))]) as act:
        for amount in (1, -1):
            outcome = await act.perform(pay(amount=amount))
            shown += [repr(outcome), repr(outcome.evidence), repr(desk.report())]
        with pytest.raises(UsageError) as refused:
            await act.perform(secret)
        shown.append("".join(traceback.format_exception(refused.value)))
    session = runtime._session
    for row in session.ledger.runs(session.namespace):
        for record in session.ledger.read(session.namespace, row.run):
            shown.append(json.dumps(exported.line(session.namespace, row.run, record, shown=True)))
    nothing = (None, None, None)
    await (in_thread(lambda: runtime.__exit__(*nothing)) if colour.blocking else runtime.__aexit__(*nothing))
    assert used == [PLANTED, PLANTED]
    assert len(shown) > 8
    assert PLANTED not in "".join([*shown, caplog.text])
    assert not _holding(tmp_path)


def _holding(folder: Path) -> list[Path]:
    """The files that the secret is in."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files
    return [file for file in files if PLANTED.encode() in file.read_bytes()]


async def test_a_secret_that_is_not_there_lets_nothing_out(colour: Colour) -> None:
    bank = Recipient("bank")
    sent: list[int] = []

    @bank.operation(reconcile=UNASKABLE)
    def pay(amount: int) -> str:
        Secret("env:COUNTERFOIL_NO_SUCH_SECRET").resolve()
        sent.append(amount)
        return "payment-1"

    desk = Desk.make(colour)
    async with desk.activation(grants=[Grant("bank", operations=("pay",))]) as act:
        outcome = await act.perform(pay(amount=1))
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == "secret-unavailable"
    assert sent == []

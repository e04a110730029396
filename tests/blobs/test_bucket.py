"""Blobs behind the S3 protocol: sealed and readable or invisible, whatever is lost, changed or killed on the way."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from counterfoil import (
    Accepted,
    BlobDamaged,
    BlobMissing,
    Blobs,
    Broker,
    Budget,
    EffectUnresolved,
    Failed,
    Grant,
    RecipientError,
    Rejected,
    Runtime,
    Secret,
    Uncertain,
    UsageError,
)
from counterfoil.recipients.blobs.beside import all_of
from counterfoil.recipients.blobs.lending import Line
from counterfoil.recipients.blobs.reference import reference as reference_of
from counterfoil.recipients.blobs.s3.bucket import SealedObject
from counterfoil.recipients.blobs.s3.capabilities import RACERS
from counterfoil.recipients.blobs.s3.client import Asking, Client
from counterfoil.recipients.blobs.s3.journal import Log
from counterfoil.recipients.http.authority import CodeAuthority
from tests.blobs.endpoints import Endpoint, Endpoints
from tests.blobs.s3_support import Meddler, bucket, client_of, keys, uploads
from tests.blobs.support import MIB, some_bytes
from tests.support import PATIENCE_S, Gate

PART = 5 * MIB


def through(meddler: Meddler, blobs: Blobs, tmp_path: Path, **options: Any) -> Blobs:
    """The same bucket, with somebody in between."""
    place = client_of(blobs).place
    given: dict[str, Any] = {"part_bytes": PART, "settle_s": 0.0, **options}
    return bucket(meddler.endpoint, tmp_path / "other", name=place.bucket, **given)


def store(blobs: Blobs, data: bytes, **more: Any) -> Any:
    with blobs.writer(**more) as writer:
        writer.write(data)
        return writer.seal()


def journalled(tmp_path: Path, name: str = "journal") -> list[str]:
    folder = tmp_path / name / "uploads"
    return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []


# --- K1, K3, K6


@pytest.mark.rule("K1", "K3", "K6")
@pytest.mark.parametrize("size", [0, 5, PART, 2 * PART + 77])
def test_a_blob_is_sealed_read_in_parts_and_checked(blobs: Blobs, tmp_path: Path, size: int) -> None:
    data = some_bytes(size)
    outcome = store(blobs, data, media_type="image/png")
    assert isinstance(outcome, Accepted)
    assert outcome.evidence.promises == ("durable", "immutable")
    assert blobs.reader(outcome.proof).read() == data
    assert blobs.reader(outcome.proof, start=size // 2, length=10).read() == data[size // 2 : size // 2 + 10]
    assert blobs.check(outcome.proof).sound
    assert list(blobs.references()) == [outcome.proof]
    assert journalled(tmp_path) == []
    assert uploads(blobs) == []
    before = keys(blobs)
    again = store(blobs, data, media_type="image/png")
    assert again.proof == outcome.proof
    assert again.evidence.details["already"] is True
    assert keys(blobs) == before


@pytest.mark.rule("K3", "B4")
def test_every_mutation_is_journalled_before_it_is_sent_and_sent_once(
    blobs: Blobs, meddler: Meddler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = through(meddler, blobs, tmp_path)
    said: list[str] = []
    write = Log.write

    def written(self: Log, what: str, **facts: Any) -> None:
        write(self, what, **facts)
        said.append(what)

    monkeypatch.setattr(Log, "write", written)
    meddler.before = lambda seen: said.append(f"<{seen.kind}>")
    outcome = store(other, some_bytes(PART + 1))
    assert isinstance(outcome, Accepted)
    mutations = [one for one in said if one not in ("<get>", "<head>", "created")]
    # Two parts may be on their way at once.
    assert mutations[:3] == ["create", "<create>", "part"]
    assert sorted(mutations[3:6]) == ["<part>", "<part>", "part"]
    assert mutations[5:] == ["<part>", "complete", "<complete>", "record", "<record>"]
    conditional = [seen for seen in meddler.seen if seen.kind in ("complete", "record")]
    assert [seen.headers.get("If-None-Match") for seen in conditional] == ["*", "*"]
    assert outcome.evidence.details is not None
    assert outcome.evidence.details["attempts"] == len(meddler.seen) - kinds_beside(meddler)


def kinds_beside(meddler: Meddler) -> int:
    """Reads, which are not attempts of the put."""
    return sum(seen.kind in ("get", "head") for seen in meddler.seen)


@pytest.mark.rule("K3")
def test_a_version_is_pinned_where_the_bucket_has_versions(ministack: Endpoint, tmp_path: Path) -> None:
    blobs = bucket(ministack, tmp_path / "journal", probed=False)
    enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    assert client_of(blobs).ask("PUT", "", params={"versioning": ""}, body=enabled).done
    data = some_bytes(100)
    outcome = store(blobs, data)
    assert blobs.store.capabilities.versions  # type: ignore[attr-defined]
    record = blobs.store.sealed(reference_of(outcome.proof))  # type: ignore[attr-defined]
    assert record.more["version"]
    # Somebody puts something else over it: the version that was sealed is what is read.
    assert client_of(blobs).ask("PUT", record.more["key"], body=b"other").done
    sealed = SealedObject(client_of(blobs), record)
    assert sealed.chunk(0) == data
    assert blobs.check(outcome.proof).sound


@pytest.mark.rule("K6")
@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        ("other bytes", "wrong-digest"),
        ("longer", "wrong-digest"),
        ("shorter", "truncated"),
        ("gone", "truncated"),
        ("swapped", "swapped"),
    ],
)
def test_whatever_was_done_to_an_object_is_found(blobs: Blobs, harm: str, fault: str) -> None:
    data = some_bytes(2 * MIB)
    one, two = store(blobs, data).proof, store(blobs, some_bytes(MIB, seed=1)).proof
    record = blobs.store.sealed(reference_of(one))  # type: ignore[attr-defined]
    key, mark = record.more["key"], {"x-amz-meta-counterfoil": record.more["unique"]}
    client = client_of(blobs)
    if harm == "other bytes":
        assert client.ask("PUT", key, headers=mark, body=data[:-1] + b"?").done
    elif harm == "longer":
        assert client.ask("PUT", key, headers=mark, body=data + b"?").done
    elif harm == "shorter":
        opened = blobs.reader(one)
        assert client.ask("PUT", key, headers=mark, body=data[:-1]).done
        with pytest.raises(BlobDamaged):
            opened.read()
        return
    elif harm == "gone":
        assert client.ask("DELETE", key).done
    else:
        names = [each for each in keys(blobs) if "/sealed/" in each]
        bodies = {name: client.ask("GET", name).content for name in names}
        first = next(name for name in names if one["digest"][7:] in name)
        second = next(name for name in names if two["digest"][7:] in name)
        assert client.ask("PUT", first, body=bodies[second]).done
    assert blobs.check(one).fault == fault
    assert blobs.check(two).sound


def test_what_is_not_there_is_missing(blobs: Blobs) -> None:
    with pytest.raises(BlobMissing):
        blobs.reader(blobs.put(b"never").reference)
    assert blobs.check(blobs.put(b"never").reference).fault == "missing"


# --- K4


def once(kind: str, act: str) -> Any:
    """Let something happen to the first request of a kind."""
    left = [True]

    def meddle(seen: Any) -> str | None:
        if seen.kind == kind and left.pop() if left else False:
            return act
        return None

    return meddle


@pytest.mark.rule("K4", "O2")
@pytest.mark.parametrize("kind", ["complete", "record"])
def test_a_lost_answer_is_settled_by_looking_and_never_by_sending_again(
    blobs: Blobs, meddler: Meddler, tmp_path: Path, kind: str
) -> None:
    other = through(meddler, blobs, tmp_path)
    meddler.after = once(kind, "lose")
    data = some_bytes(PART + 9)
    outcome = store(other, data)
    assert isinstance(outcome, Accepted), outcome
    assert [each for each in meddler.kinds() if each not in ("get", "head")] == [
        "create",
        "part",
        "part",
        "complete",
        "record",
    ]
    assert blobs.reader(outcome.proof).read() == data
    assert journalled(tmp_path, "other") == []


@pytest.mark.rule("K3", "K4")
@pytest.mark.parametrize("done", [True, False])
def test_a_200_with_an_error_in_its_body_is_looked_into(
    blobs: Blobs, meddler: Meddler, tmp_path: Path, done: bool
) -> None:
    other = through(meddler, blobs, tmp_path)

    def erroneous(seen: Any) -> str | None:
        if seen.kind == "complete":
            seen.status, seen.answer = 200, b"<?xml version='1.0'?><Error><Code>InternalError</Code></Error>"
        return None

    def invented(seen: Any) -> str | None:
        erroneous(seen)
        return "invent" if seen.kind == "complete" else None

    if done:
        meddler.after = erroneous
    else:
        meddler.before = invented
    data = some_bytes(PART + 9)
    outcome = store(other, data)
    if done:
        assert isinstance(outcome, Accepted)
        assert blobs.reader(outcome.proof).read() == data
    else:
        assert isinstance(outcome, Failed)
        assert list(blobs.references()) == []
    assert meddler.kinds().count("complete") == 1


@pytest.mark.rule("K4", "O2")
def test_what_cannot_be_looked_at_is_uncertain_and_the_bytes_stay(
    blobs: Blobs, meddler: Meddler, tmp_path: Path
) -> None:
    other = through(meddler, blobs, tmp_path)
    lost: list[bool] = []

    def after(seen: Any) -> str | None:
        if seen.kind == "record":
            lost.append(True)
        return "lose" if lost else None

    meddler.after = after
    outcome = store(other, b"somewhere")
    assert isinstance(outcome, Uncertain)
    assert outcome.evidence.kind == "not-known-to-be-sealed"
    meddler.after = None
    assert other.check(other.put(b"somewhere").reference).sound
    cleaned = other.clean()
    assert (cleaned.removed, cleaned.left) == (1, 0)
    assert other.check(other.put(b"somewhere").reference).sound


@pytest.mark.rule("K4", "K5")
def test_a_record_that_may_still_arrive_keeps_its_bytes(blobs: Blobs, meddler: Meddler, tmp_path: Path) -> None:
    other = through(meddler, blobs, tmp_path)
    held: list[Any] = []

    def before(seen: Any) -> str | None:
        if seen.kind == "record":
            held.append(seen)
            return "drop"
        return None

    meddler.before = before
    outcome = store(other, b"late")
    assert isinstance(outcome, Uncertain)
    for _ in range(3):
        assert other.clean().left == 1
    # It arrives now, long after everybody has gone.
    late = client_of(blobs)
    path = next(each["key"] for each in entries(tmp_path / "other") if each["what"] == "record")
    assert late.ask("PUT", path, headers={"If-None-Match": "*"}, body=held[0].body).done
    assert other.check(other.put(b"late").reference).sound
    assert other.clean().removed == 1
    assert other.check(other.put(b"late").reference).sound


def entries(journal: Path) -> list[dict[str, Any]]:
    import json

    (log,) = (journal / "uploads").glob("*/log")
    return [json.loads(line) for line in log.read_text().splitlines() if line]


@pytest.mark.rule("K4", "K5")
def test_a_204_for_an_abort_does_not_prove_that_a_part_on_its_way_is_gone(
    blobs: Blobs, meddler: Meddler, tmp_path: Path
) -> None:
    other = through(meddler, blobs, tmp_path)
    other.store.settle_s = 3600.0  # type: ignore[attr-defined]
    meddler.before = once("part", "drop")
    outcome = store(other, some_bytes(PART))
    assert (type(outcome), outcome.evidence.kind) == (Failed, "part-not-stored")
    assert "abort" in meddler.kinds()
    assert uploads(blobs) == []
    assert other.clean().in_flight == 1
    asked = len(meddler.seen)
    assert other.clean().in_flight == 1
    assert len(meddler.seen) == asked
    # What was on its way arrives after all, and makes the upload anew: as some endpoints do.
    key = next(each["key"] for each in entries(tmp_path / "other") if each["what"] == "create")
    assert client_of(blobs).ask("POST", key, params={"uploads": ""}).done
    other.store.settle_s = 0.0  # type: ignore[attr-defined]
    assert other.clean().in_flight == 1
    assert uploads(blobs) == []
    assert other.clean().removed == 1
    assert journalled(tmp_path, "other") == []


@pytest.mark.rule("K4", "B5")
def test_an_abort_does_not_overtake_the_parts(ministack: Endpoint, tmp_path: Path) -> None:
    with Meddler(ministack) as meddler:
        blobs = bucket(meddler.endpoint, tmp_path / "journal", part_bytes=PART)
        gate = Gate()

        def before(seen: Any) -> None:
            if seen.kind == "part":
                gate.stop()

        writer = blobs.writer()
        meddler.before = before
        writer.write(some_bytes(2 * PART))
        assert gate.reached.wait(PATIENCE_S)
        thread = threading.Thread(target=writer.abandon)
        thread.start()
        thread.join(0.2)
        assert "abort" not in meddler.kinds()
        gate.open()
        thread.join(PATIENCE_S)
        assert [kind for kind in meddler.kinds() if kind != "put"][-3:] == ["part", "part", "abort"]
        assert uploads(blobs) == []


class Noted(CodeAuthority):
    """A permit that notes what it is asked for."""

    def __init__(self, blobs: Blobs) -> None:
        super().__init__(client_of(blobs).http.opened, 60.0)
        self.stops: list[Any] = []
        self.gates = 0

    def on_cancel(self, stop: Any) -> None:
        self.stops.append(stop)

    def dispatch(self, **_facts: Any) -> None:
        self.gates += 1


@pytest.mark.rule("B2", "B5")
def test_a_permit_is_told_once_what_to_stop_however_many_requests_there_are(blobs: Blobs) -> None:
    permit = Noted(blobs)
    context = Asking(lambda: False)
    assert isinstance(blobs.put(some_bytes(2 * PART + 1)).perform(context, permit), Accepted)
    # What it is told it keeps: bodies of requests that are over must not hang on it.
    assert (len(permit.stops), permit.gates) == (1, 1)
    line = Line(permit)
    stopped: list[str] = []
    over, running = line.lend(), line.lend()
    over.on_cancel(lambda: stopped.append("over"))
    running.on_cancel(lambda: stopped.append("running"))
    over.give_back()
    permit.stops[-1]()
    line.lend().on_cancel(lambda: stopped.append("late"))
    assert stopped == ["running", "late"]


def dying(number: int, when: str) -> Any:
    """Ask, and die before the n-th request, or after it."""
    left, ask = [number], Client.ask

    def asked(self: Client, *args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] < 0 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = ask(self, *args, **more)
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return asked


@pytest.mark.rule("K3", "K4", "K5")
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_request_a_blob_is_sealed_or_invisible_and_nothing_is_left(
    ministack: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    # One endpoint is enough here: what differs between them is in the other tests.
    blobs = bucket(ministack, tmp_path / "journal", part_bytes=PART, settle_s=0.0)
    number = visible = 0
    while True:
        data = some_bytes(PART + 3, seed=number)
        child = os.fork()
        if child == 0:
            monkeypatch.setattr(Client, "ask", dying(number, when))
            try:
                store(blobs, data)
            finally:
                os._exit(0)
        _, ended = os.waitpid(child, 0)
        reference = blobs.put(data).reference
        checked = blobs.check(reference)
        assert checked.fault in (None, "missing")
        visible += checked.sound
        cleaned = [blobs.clean() for _ in range(3)]
        assert blobs.check(reference) == checked
        if not os.WIFSIGNALED(ended):
            break
        # A record that may still arrive keeps its journal, and its bytes.
        kept = cleaned[-1].left
        assert kept == (1 if when == "before" and len(journalled(tmp_path)) == 1 else 0)
        if kept:
            for each in (tmp_path / "journal" / "uploads").iterdir():
                for file in each.iterdir():
                    file.unlink()
                each.rmdir()
        else:
            assert journalled(tmp_path) == []
            assert len(keys(blobs)) == 2 * visible
        assert uploads(blobs) == []
        for key in keys(blobs):
            client_of(blobs).ask("DELETE", key)
        visible = 0
        number += 1
    assert number >= 7
    assert blobs.check(reference).sound


@pytest.mark.rule("K6")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", ["ministack", "juicefs"])
def test_memory_does_not_grow_with_a_blob_that_is_sent_and_read(
    endpoints: Endpoints, tmp_path: Path, name: str
) -> None:
    # On the second one what was sent is read back before it is sealed, too.
    endpoint = endpoints.get(name)
    there = bucket(endpoint, tmp_path / "journal", probed=False)
    _ = there.capabilities()
    code = f"""
import sys
from pathlib import Path
from counterfoil import Blobs, Secret
blobs = Blobs({there.url!r}, credentials=({endpoint.access!r}, Secret("env:TEST_S3_SECRET")),
              journal={str(tmp_path / "journal")!r}, weak={endpoint.weak!r})
with blobs.writer() as writer:
    for number in range(96):
        writer.write(bytes([number]) * (1 << 20))
    reference = writer.seal().proof
def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024
written = peak()
with blobs.reader(reference) as reader:
    size = sum(len(each) for each in reader)
print(size, written, peak())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    size, sent_mib, read_mib = map(int, done.stdout.split())
    assert size == 96 * MIB
    assert sent_mib < 64
    assert read_mib < 64


@pytest.mark.rule("K5")
def test_what_is_being_written_is_never_cleaned_up(blobs: Blobs) -> None:
    with blobs.writer() as writer:
        writer.write(some_bytes(PART))
        cleaned = blobs.clean()
        assert (cleaned.removed, cleaned.in_flight) == (0, 1)
        assert isinstance(writer.seal(), Accepted)


# --- capabilities


class Together:
    """Lets the first that ask on a condition for one key go on when all of them are here, so that they race."""

    def __init__(self, many: int) -> None:
        self._lock = threading.Lock()
        self._came: Counter[str] = Counter()
        self._races: defaultdict[str, threading.Barrier] = defaultdict(lambda: threading.Barrier(many))
        self._many = many

    def __call__(self, seen: Any) -> None:
        if "If-None-Match" in seen.headers:
            with self._lock:
                key = seen.path.partition("?")[0]
                self._came[key] += 1
                race = self._races[key] if self._came[key] <= self._many else None
            if race is not None:
                race.wait(PATIENCE_S)


@pytest.mark.rule("K3")
def test_what_an_endpoint_can_do_is_found_by_a_race_and_kept(
    endpoint: Endpoint, meddler: Meddler, tmp_path: Path
) -> None:
    blobs = bucket(meddler.endpoint, tmp_path / "journal", probed=False, weak="refuse")
    meddler.before = Together(RACERS)
    assert blobs.capabilities() == {"kind": "bucket", **asdict(endpoint.known)}
    assert (keys(blobs), uploads(blobs), journalled(tmp_path)) == ([], [], [])
    meddler.seen.clear()
    again = bucket(meddler.endpoint, tmp_path / "journal", name=client_of(blobs).place.bucket, probed=False)
    assert again.capabilities() == blobs.capabilities()
    assert meddler.seen == []
    if not endpoint.known.strong:
        with pytest.raises(RecipientError) as caught:
            blobs.writer()
        assert caught.value.code == "endpoint-too-weak"
        assert meddler.seen == []


@pytest.mark.rule("K3", "O2")
@pytest.mark.parametrize("harm", ["drop", "refuse"])
def test_an_endpoint_that_does_not_answer_is_not_called_weak(ministack: Endpoint, tmp_path: Path, harm: str) -> None:
    with Meddler(ministack) as meddler:
        blobs = bucket(meddler.endpoint, tmp_path / "journal", probed=False)

        def before(seen: Any) -> str | None:
            # One of those that race is not answered, or told to come later.
            puts = [each for each in meddler.seen if each.kind == "put"]
            if len(puts) < 4 or puts[3] is not seen:
                return None
            seen.status = 503
            return "drop" if harm == "drop" else "invent"

        meddler.before = before
        with pytest.raises(RecipientError) as caught:
            blobs.capabilities()
        assert caught.value.code == "endpoint-untried"
        assert blobs.clean().in_flight == 1
        meddler.before = None
        assert blobs.capabilities()["create"] == "atomic"
        blobs.store.settle_s = 0.0  # type: ignore[attr-defined]
        while blobs.clean().in_flight:
            pass
        assert (keys(blobs), uploads(blobs), journalled(tmp_path)) == ([], [], [])


@pytest.mark.rule("K3")
def test_an_endpoint_that_refuses_conditions_is_written_to_without(ministack: Endpoint, tmp_path: Path) -> None:
    with Meddler(ministack) as meddler:

        def before(seen: Any) -> str | None:
            seen.status = 501
            return "invent" if "If-None-Match" in seen.headers else None

        meddler.before = before
        blobs = bucket(meddler.endpoint, tmp_path / "journal", probed=False, weak="verify")
        told = blobs.capabilities()
        assert (told["create"], told["complete"]) == ("refused", "refused")
        outcome = store(blobs, b"unconditional")
        assert isinstance(outcome, Accepted)
        assert blobs.reader(outcome.proof).read() == b"unconditional"


@pytest.mark.rule("K3", "B1", "B3")
def test_an_endpoint_is_tried_under_the_permit_of_the_put_that_needs_it(ministack: Endpoint, tmp_path: Path) -> None:
    with Meddler(ministack) as meddler:
        blobs = bucket(meddler.endpoint, tmp_path / "journal", probed=False)
        target = blobs.store.target
        assert target is not None
        granted = {"operations": ("put",), "allow_addresses": ("127.0.0.1/32",)}
        meddler.seen.clear()

        def put(grant: Grant, **budget: Any) -> Any:
            with Broker().activation(grants=(grant,), budget=Budget(**budget)) as activation:
                return activation.perform(blobs.put(b"tried"))

        refused = put(Grant("blobs", targets=("https://elsewhere.example/",), **granted))
        assert isinstance(refused, Rejected)
        assert meddler.seen == []
        grant = Grant("blobs", targets=(target,), **granted)
        short = put(grant, calls=5)
        assert isinstance(short, Failed)
        assert len(meddler.seen) == 5
        assert isinstance(put(grant), Accepted)


@pytest.mark.rule("K3")
def test_many_writers_of_the_same_bytes_make_one_blob(blobs: Blobs) -> None:
    data = some_bytes(1000)
    outcomes = all_of([partial(store, blobs, data)] * 4)
    assert all(isinstance(each, Accepted) for each in outcomes), outcomes
    assert list(blobs.references()) == [outcomes[0].proof]
    assert blobs.check(outcomes[0].proof).sound


@pytest.mark.rule("K1")
def test_a_blob_that_is_not_what_was_announced_or_is_given_up_is_not_sealed(blobs: Blobs, tmp_path: Path) -> None:
    data = some_bytes(PART + 1)
    outcome = store(blobs, data, digest="sha256:" + "0" * 64)
    assert (type(outcome), outcome.evidence.kind) == (Failed, "wrong-digest")
    with blobs.writer() as writer:
        writer.write(data)
    assert (list(blobs.references()), uploads(blobs)) == ([], [])
    # Twice for each: what was found the first time might have had company.
    for _ in range(3):
        blobs.clean()
    assert (keys(blobs), journalled(tmp_path)) == ([], [])


# --- modes, arguments


@pytest.mark.rule("K1", "B1", "B3")
def test_a_put_goes_where_a_grant_allows_it_and_nowhere_else(blobs: Blobs, meddler: Meddler, tmp_path: Path) -> None:
    other = through(meddler, blobs, tmp_path)
    assert other.store.target is not None
    for targets, expected in (((other.store.target,), Accepted), (("https://elsewhere.example/",), Rejected)):
        meddler.seen.clear()
        grant = Grant("blobs", operations=("put",), targets=targets, allow_addresses=("127.0.0.1/32",))
        with Broker().activation(grants=(grant,)) as activation:
            outcome = activation.perform(other.put(b"granted"))
        assert isinstance(outcome, expected), outcome
        assert bool(meddler.seen) is (expected is Accepted)


@pytest.mark.rule("E1", "E2", "K4")
def test_a_put_is_an_effect_and_the_bucket_is_asked_after_a_crash(blobs: Blobs, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Runtime(url) as runtime, runtime.run("r") as run:
        assert isinstance(run.effect("a", blobs.put(b"a")), Accepted)

        def lost(_context: Any) -> Any:
            blobs.put(b"b").run(None)
            raise ConnectionError

        with pytest.raises(EffectUnresolved):
            run.effect("b", run=lost, reconcile=blobs.put(b"b").reconcile)
        outcome = run.effect("b", run=lost, reconcile=blobs.put(b"b").reconcile)
        assert isinstance(outcome, Accepted)
        assert outcome.via == "reconcile"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"url": "s3://"}, "no bucket"),
        ({"url": "s3://b"}, "3 to 63 characters"),
        ({"url": "s3://user:secret@bucket"}, "no credentials"),
        ({"url": "s3://bucket?endpoint=ftp://x"}, "origin"),
        ({"url": "s3://bucket?colour=red"}, "mean nothing"),
        ({"journal": None}, "journal"),
        ({"credentials": None}, "credentials"),
        ({"credentials": ("a", "plain")}, "credentials"),
        ({"weak": "hope"}, "weak"),
        ({"part_bytes": 1}, "part_bytes"),
    ],
)
def test_what_is_wrong_is_found_when_it_is_made(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"url": "s3://bucket", "journal": tmp_path, "credentials": ("a", Secret("env:X"))} | change
    with pytest.raises(UsageError, match=says):
        Blobs(given.pop("url"), **given)

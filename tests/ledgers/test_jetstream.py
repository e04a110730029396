"""The JetStream ledger against real servers: lost answers, zombies, streams that lose records, servers that die."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import msgspec
import nats as nats_py
import pytest
import trustme

from counterfoil import Accepted, Runtime
from counterfoil.errors import (
    CommitUnknown,
    ForkedLedger,
    LedgerCorrupt,
    LedgerReadOnly,
    LedgerUnavailable,
    OwnerRetired,
    RunPruned,
    UsageError,
)
from counterfoil.ledgers.jetstream import messages
from counterfoil.ledgers.jetstream.opening import sync_policy
from counterfoil.ledgers.jetstream.store import Put
from counterfoil.ledgers.jetstream.stretch import Stretch
from counterfoil.ledgers.watch import BEATS
from counterfoil.protocol import slots
from counterfoil.protocol.records import EVENT, RUN, Entry
from tests.ledgers.postgres_support import PATIENCE_S, Doing, answer, opened, until
from tests.ledgers.support import end, entry, hurry, intent, line, python, slots_of
from tests.servers.nats import NatsCluster, NatsNode
from tests.servers.proxy import Act, On, Proxy, lose_reply, lose_request
from tests.servers.starting import free_ports, server_folder
from tests.support import GROWING_S, tries

BEAT_S = 0.15
# For who must not miss three of them.
SLOWER_S = (0.15, 0.8, 3.0)
_streams = count(1)

Open = Callable[..., Any]


@pytest.fixture
def stream() -> str:
    """The name of a stream of its own."""
    return f"own-{next(_streams)}"


@pytest.fixture
def proxy(nats: NatsCluster) -> Iterator[Proxy]:
    """A proxy in front of the shared server."""
    with Proxy(nats.nodes[0].port) as between:
        yield between


@pytest.fixture
def open_ledger(nats: NatsCluster, stream: str, proxy: Proxy) -> Iterator[Open]:
    """Opens ledgers on one stream, directly or through the proxy, and closes them while that still stands."""
    made: list[Any] = []

    def open_one(*, through: bool = False, beat_s: float = BEAT_S) -> Any:
        port = proxy.port if through else nats.nodes[0].port
        options = f"allow_lazy_sync=1&beat={beat_s}"
        made.append(opened(f"nats://127.0.0.1:{port}/{stream}?{options}"))
        return made[-1]

    yield open_one
    proxy.rule = None
    proxy.resume()
    for ledger in made:
        ledger.close()


def silence(ledger: Any) -> None:
    """Stop an owner's heart, as if its process hung."""

    async def stop() -> None:
        ledger._lives._heart.cancel()

    ledger._run(stop())


def put(ledger: Any, one: Entry, *, kept: bool = False) -> int:
    """Publish a record without asking whether it may be there, as one does that was held up on the wire."""
    subject = ledger._store.subjects.record(one.namespace, one.run, one.slot)
    what = Put(subject=subject, data=messages.encode(messages.Recorded(one, kept)), expected=0)
    said = ledger._run(ledger._store.put(what, deadline=time.monotonic() + PATIENCE_S))
    return int(said.sequence)


def stored(ledger: Any, run: str = "run") -> int:
    """How many messages the stream has for a run, the void ones too."""
    return len(ledger._run(ledger._reader.messages("n", run, 0)))


# --- what is acknowledged


@pytest.mark.rule("L3")
def test_an_append_whose_answer_is_lost_is_there_once(open_ledger, proxy):
    ledger = open_ledger(through=True)
    proxy.rule = lose_reply(rb"HPUB [^ ]+record", times=3)
    one = entry("slot")
    record = ledger.append(one)
    assert (record.epoch, record.append_id) == (one.epoch, one.append_id)
    assert len(proxy.rule.links) == 3
    assert stored(ledger) == 1


@pytest.mark.rule("L3", "L1")
def test_whoever_was_first_while_an_answer_was_lost_stays_first(open_ledger, proxy):
    ledger, other = open_ledger(through=True), open_ledger()
    proxy.rule = lose_request(rb"HPUB [^ ]+record", times=1)
    theirs = other.append(entry("slot", body=b'"theirs"'))
    assert ledger.append(entry("slot", body=b'"ours"')) == theirs
    assert stored(ledger) == 1


@pytest.mark.rule("L3")
def test_an_append_that_lands_after_it_was_repeated_changes_nothing(open_ledger, proxy):
    ledger = open_ledger(through=True)
    ledger.append(entry("before"))
    proxy.rule = On(rb"HPUB [^ ]+record", Act.HOLD, times=1)
    record = ledger.append(entry("slot"))
    proxy.resume()
    ledger.append(entry("after"))
    until(lambda: b"slot" in proxy.sent)
    assert stored(ledger) == 3
    assert ledger.read("n", "run")[1] == record


@pytest.mark.rule("L3")
def test_without_an_answer_an_append_is_unknown_by_its_deadline_and_is_settled_later(open_ledger, proxy):
    ledger = open_ledger(through=True)
    ledger.append(entry("before"))
    one = entry("slot")
    proxy.rule = rule = On(rb"HPUB [^ ]+record", Act.STALL, times=1)
    for time_s in tries(lambda: rule.links, GROWING_S[2:]):
        hurry(ledger, time_s)
        with pytest.raises(LedgerUnavailable) as raised:
            ledger.append(one)
        assert isinstance(raised.value, CommitUnknown) or not rule.links
    hurry(ledger, PATIENCE_S)
    proxy.resume()
    record, _ = answer(ledger, one)
    assert record.append_id == one.append_id
    assert stored(ledger) == 2


def looks(proxy: Proxy) -> int:
    """How often it was asked whether something is void."""
    return proxy.sent.count(b"multi_last")


@pytest.mark.rule("L9")
def test_whoever_appends_alone_pays_for_the_publish_only(open_ledger, proxy):
    ledger = open_ledger(through=True)
    epoch = ledger.register("alone")
    silence(ledger)
    ledger.append(intent("slot", epoch))
    before = looks(proxy)
    for n in range(20):
        ledger.append(intent(f"slot/{n}", epoch))
    assert looks(proxy) == before
    # A second run is listed, and looked at once.
    ledger.append(entry("slot", run="second"))
    ledger.append(entry("more", run="second"))
    assert looks(proxy) == before + 1


@pytest.mark.rule("L8", "L10")
def test_what_others_have_published_since_is_looked_at_before_an_append_is_called_recorded(open_ledger, proxy):
    ledger, other = open_ledger(through=True), open_ledger()
    epoch = ledger.register("alone")
    silence(ledger)
    ledger.append(intent("slot", epoch))
    ledger.append(intent("next", epoch))
    before = looks(proxy)
    other.append(entry("theirs", run="another"))
    ledger.append(intent("behind", epoch))
    assert looks(proxy) == before + 1
    until(lambda: other.gone(epoch))
    with pytest.raises(OwnerRetired):
        ledger.append(intent("late", epoch))


@pytest.mark.rule("L8", "L10")
def test_an_own_tombstone_and_an_own_retirement_are_seen_by_the_same_process(open_ledger):
    ledger = open_ledger()
    epoch = ledger.register("own")
    silence(ledger)
    finished(ledger)
    ledger.append(intent("slot", epoch, run="other"))
    buried(ledger, "slot")
    with pytest.raises(RunPruned):
        ledger.append(entry("new"))
    ledger.retire(epoch)
    with pytest.raises(OwnerRetired):
        ledger.append(intent("late", epoch, run="other"))


def test_a_stretch_knows_what_it_has_seen_and_nothing_else():
    stretch = Stretch()
    assert not stretch.covers(["run"], stretch.took(5), 5)
    stretch.saw(["run"], 5)
    assert stretch.covers(["run"], stretch.took(6), 6)
    assert not stretch.covers(["run", "life"], stretch.took(7), 7)
    # Somebody else's was 8.
    assert not stretch.covers(["run"], stretch.took(9), 9)
    # Answers that came out of order say nothing of one another.
    assert (stretch.took(12), stretch.took(11), stretch.took(13)) == (11, 10, 12)
    assert not stretch.covers(["run"], -1, 9)
    stretch.saw(["run"], 13)
    stretch.broke()
    assert not stretch.covers(["run"], stretch.took(14), 14)


@pytest.mark.rule("L2", "L3", "N3")
def test_a_killed_server_loses_nothing_that_was_acknowledged(own_nats):
    node = own_nats.nodes[0]
    # Its sync is proved, so nothing is to be allowed.
    ledger = opened(f"{node.url}/l?monitor=http://127.0.0.1:{node.monitor}")
    assert ("ok", "sync-interval") in {finding[:2] for finding in ledger.diagnose()}
    for n in range(20):
        ledger.append(entry(f"slot/{n}"))
    node.stop(signal.SIGKILL)
    hurry(ledger, 1.0)
    with pytest.raises(LedgerUnavailable) as raised:
        ledger.append(entry("gone"))
    assert raised.value.effect_ran == "no" or isinstance(raised.value, CommitUnknown)
    with pytest.raises(LedgerUnavailable):
        ledger.read("n", "run")
    hurry(ledger, PATIENCE_S)
    node.start()
    own_nats.ready()
    ledger.append(entry("back"))
    assert slots_of(ledger) == [*(f"slot/{n}" for n in range(20)), "back"]
    ledger.close()


@pytest.mark.rule("L4")
def test_what_is_no_record_is_corrupt_and_other_runs_go_on(open_ledger):
    ledger = open_ledger()
    ledger.append(entry("slot", run="other"))
    what = Put(subject=ledger._store.subjects.record("n", "run", "x"), data=b"\xc1", expected=0)
    ledger._run(ledger._store.put(what, deadline=time.monotonic() + PATIENCE_S))
    with pytest.raises(LedgerCorrupt):
        ledger.read("n", "run")
    assert slots_of(ledger, "other") == ["slot"]


@pytest.mark.rule("L1")
def test_what_is_too_large_for_a_message_is_refused_and_its_neighbours_are_not(open_ledger):
    ledger = open_ledger()
    with pytest.raises(UsageError, match="max_payload"):
        ledger.append(entry("large", body=b'"' + b"x" * (1 << 20) + b'"'))
    ledger.append(entry("slot"))
    assert slots_of(ledger) == ["slot"]


# --- owners


def lives_on(observer: Any, epoch: str, *, seconds: float) -> bool:
    """Whether a life is not found gone for so long."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        if observer.gone(epoch):
            return False
        time.sleep(0.02)
    return True


@pytest.mark.rule("L7")
def test_a_life_is_gone_when_its_counter_has_stood_still_for_three_beats_and_not_while_it_beats(open_ledger):
    observer, late = open_ledger(), open_ledger()
    lived: list[bool] = []
    # Where its heart stands still for three beats it is not what this test is about.
    for beat_s in tries(lambda: lived[-1], SLOWER_S):
        observed = open_ledger(beat_s=beat_s)
        epoch = observed.register("observed")
        lived.append(lives_on(observer, epoch, seconds=2 * BEATS * beat_s))
        if not lived[-1]:
            continue
        silence(observed)
        # Whoever begins to look now has to look as long.
        began = time.monotonic()
        until(partial(late.gone, epoch))
        assert time.monotonic() - began >= (BEATS - 1) * beat_s
        assert not observed.live(epoch)
    epoch = observer.register("the observer")
    assert {owner.epoch for owner in late.owners()} == {epoch}


@pytest.mark.rule("L7")
def test_a_life_that_has_beaten_since_it_was_looked_at_is_not_retired(open_ledger):
    observed, observer = open_ledger(), open_ledger()
    epoch = observed.register("observed")
    deadline = time.monotonic() + PATIENCE_S
    sequence, state = observer._run(observer._lives._state(epoch, deadline))
    until(lambda: observer._run(observer._lives._state(epoch, deadline))[0] > sequence)
    assert not observer._run(observer._lives._retired_at(epoch, sequence, deadline=deadline, state=state))
    assert observed.live(epoch)


@pytest.mark.rule("L7", "L8")
def test_a_zombies_intent_is_void_for_everybody_and_its_facts_count(open_ledger):
    zombie, other = open_ledger(), open_ledger()
    epoch = zombie.register("zombie")
    before = zombie.append(intent("before", epoch))
    silence(zombie)
    until(lambda: other.gone(epoch))
    # It does not know yet, so it publishes, and learns by its look.
    with pytest.raises(OwnerRetired):
        zombie.append(intent("slot", epoch))
    assert stored(other) == 2
    assert list(other.read("n", "run")) == [before]
    fact = zombie.append(entry("fact", epoch))
    own = other.register("other")
    ours = other.append(intent("slot", own))
    assert ours.epoch == own
    for ledger in (zombie, other, open_ledger()):
        assert list(ledger.read("n", "run")) == [before, fact, ours]
    assert zombie.append(intent("slot", epoch)) == ours


@pytest.mark.rule("L7")
def test_an_intent_that_was_on_the_wire_when_its_life_was_retired_is_void(open_ledger, proxy):
    zombie, other = open_ledger(through=True), open_ledger()
    epoch = zombie.register("zombie")
    silence(zombie)
    proxy.rule = On(rb"HPUB [^ ]+record", Act.STALL, times=1)
    trying = Doing(lambda: zombie.append(intent("slot", epoch)))
    until(lambda: other.gone(epoch))
    proxy.resume()
    with pytest.raises((OwnerRetired, CommitUnknown)):
        trying.result()
    until(lambda: stored(other) == 1)
    assert list(other.read("n", "run")) == []
    assert other.append(intent("slot", own := other.register("other"))).epoch == own


LIFE = """
import sys, time
from counterfoil.ledgers.urls import parse
ledger = parse(sys.argv[1]).open()
print(ledger.register("killed"), flush=True)
time.sleep(3600)
"""


@pytest.mark.rule("L7")
def test_a_killed_process_is_found_gone_and_a_stopped_observer_counts_no_silence(nats, stream, open_ledger):
    observer = open_ledger()
    lived: list[bool] = []
    for beat_s in tries(lambda: lived[-1], SLOWER_S):
        other = python(LIFE, f"{nats.url}/{stream}?allow_lazy_sync=1&beat={beat_s}")
        try:
            epoch = line(other)
            assert not observer.gone(epoch)
            time.sleep((BEATS + 1) * beat_s)
            lived.append(not observer.gone(epoch))
            other.kill()
            until(partial(observer.gone, epoch))
        finally:
            end(other)


@pytest.mark.rule("L7")
def test_the_beats_of_a_life_do_not_pile_up(open_ledger, monkeypatch):
    monkeypatch.setattr("counterfoil.ledgers.jetstream.lives._SWEEP", 4)
    ledger = open_ledger()
    epoch = ledger.register("beating")
    life = ledger._lives._own[epoch]
    until(lambda: life.beats >= 9)
    where = ledger._store.subjects.owner(epoch)
    page = ledger._run(ledger._store.page(where, 0, limit=100, deadline=time.monotonic() + PATIENCE_S))
    assert len(page) <= 5
    assert ledger.live(epoch)


# --- pruning


def finished(ledger: Any, *, kind: str = RUN, phase: str = "finished") -> None:
    ledger.append(entry("slot", kind=EVENT, phase="delivered"))
    if kind == RUN:
        ledger.append(entry(slots.FINISHED, kind=RUN, phase=phase))


def buried(ledger: Any, *drop: str) -> None:
    ledger.bury("n", "run", tombstone=entry(slots.TOMBSTONE, kind=RUN, phase="tombstone"), kept=[], drop=drop)


@pytest.mark.rule("L10")
def test_what_lands_behind_the_tombstone_is_void_for_everybody(open_ledger):
    ledger, other = open_ledger(), open_ledger()
    finished(ledger)
    buried(ledger, "slot")
    assert put(other, entry("slot", body=b'"late"'))
    for reader in (ledger, other):
        assert slots_of(reader) == [slots.FINISHED, slots.TOMBSTONE]
        with pytest.raises(RunPruned):
            reader.append(entry("slot"))
        with pytest.raises(RunPruned):
            reader.append(entry("new"), settle=True)


@pytest.mark.rule("L10")
def test_nothing_comes_between_the_last_look_and_the_tombstone(open_ledger, monkeypatch):
    ledger, other = open_ledger(), open_ledger()
    finished(ledger, kind=EVENT)
    look = ledger._reader.records
    meddled: list[int] = []

    async def looking(*place: Any) -> Any:
        found = await look(*place)
        if not meddled:
            meddled.append(1)
            await asyncio.get_running_loop().run_in_executor(None, other.append, entry("step"))
        return found

    monkeypatch.setattr(ledger._reader, "records", looking)
    # A run that holds more than deliveries now, and is not finished.
    with pytest.raises(UsageError, match="not finished"):
        buried(ledger, "slot")
    assert slots_of(ledger) == ["slot", "step"]


# --- streams and servers that could lose records


async def _configured(url: str, stream: str, **config: Any) -> dict[str, Any]:
    client = await nats_py.connect(url)
    question = {"name": stream, "subjects": [f"{stream}.>"], "storage": "file", "num_replicas": 1, **config}
    fit = {"discard": "new", "allow_direct": True, "deny_delete": True}
    data = msgspec.json.encode({**fit, **question})
    said = await client.request(f"$JS.API.STREAM.CREATE.{stream}", data, timeout=PATIENCE_S)
    await client.close()
    answered: dict[str, Any] = msgspec.json.decode(said.data)
    return answered


@pytest.mark.rule("L2", "N3")
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_msgs", 1000),
        ("max_bytes", 1 << 20),
        ("max_age", 10**12),
        ("max_msgs_per_subject", 1),
        ("discard", "old"),
        ("storage", "memory"),
        ("retention", "interest"),
        ("retention", "workqueue"),
        ("no_ack", True),
        ("allow_direct", False),
        ("deny_delete", False),
        ("allow_rollup_hdrs", True),
        ("allow_msg_ttl", True),
    ],
)
def test_a_stream_that_can_lose_records_is_refused(nats, stream, setting, value):
    assert "error" not in asyncio.run(_configured(nats.url, stream, **{setting: value}))
    with pytest.raises(UsageError, match=setting) as refused:
        opened(f"{nats.url}/{stream}?allow_lazy_sync=1")
    assert refused.value.hint
    assert refused.value.code == "ledger-lossy"


@pytest.mark.rule("L2", "N3")
def test_a_lazy_sync_is_refused_unless_it_is_allowed_and_then_it_is_said(nats, stream, caplog):
    monitor = f"http://127.0.0.1:{nats.nodes[0].monitor}"
    for options, found in ((f"?monitor={monitor}", "is not always"), ("?monitor=http://127.0.0.1:1", "cannot be seen")):
        with pytest.raises(UsageError, match=found) as refused:
            opened(f"{nats.url}/{stream}{options}")
        assert "allow_lazy_sync=1" in refused.value.hint
    ledger = opened(f"{nats.url}/{stream}?monitor={monitor}&allow_lazy_sync=True")
    assert "power loss" in caplog.text
    assert ledger.caution is not None
    assert "sync_interval lazy" in repr(ledger)
    findings = {subject: (level, text) for level, subject, text, _ in ledger.diagnose()}
    assert findings["sync-interval"][0] == "error"
    assert "allow_lazy_sync" in findings["sync-interval"][1]
    ledger.close()


@pytest.mark.rule("L2", "N3")
def test_every_surface_says_that_the_sync_is_lazy_and_says_it_once(nats, stream):
    monitor = f"http://127.0.0.1:{nats.nodes[0].monitor}"
    url = f"{nats.url}/{stream}?monitor={monitor}&allow_lazy_sync=1"
    said = "sync_interval of the NATS servers is not always"
    with Runtime(url) as runtime, runtime.run("r") as run:
        run.step("s", lambda: 1)
        assert said in repr(runtime)
    for command in (["show", "r"], ["doctor"]):
        ran = subprocess.run(
            [sys.executable, "-m", "counterfoil", "--ledger", url, *command],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.stderr.count(said) == 1, (command, ran.stderr)
        assert ran.returncode == (1 if command == ["doctor"] else 0)
        if command == ["show", "r"]:
            assert f"its records: {said}" in ran.stdout
        if command == ["doctor"]:
            assert "sync-interval" in ran.stdout
    shown = subprocess.run(
        [sys.executable, "-m", "counterfoil", "--ledger", url, "--json", "show", "r"], capture_output=True, check=True
    )
    assert msgspec.json.decode(shown.stdout)["caution"].startswith(said)


@pytest.mark.rule("L2")
def test_a_majority_of_servers_must_say_that_they_sync(own_nats):
    said, silent = f"http://127.0.0.1:{own_nats.nodes[0].monitor}", "http://127.0.0.1:1"
    assert sync_policy([], [said]) == "always"
    assert sync_policy([], [said, said, silent]) == "always"
    assert sync_policy([], [said, silent]) == "unknown"
    assert sync_policy([], [silent]) == "unknown"


def test_a_server_that_is_not_there_is_unavailable_and_no_stream_is_made_by_looking(nats, stream):
    with pytest.raises(LedgerUnavailable, match="no connection"):
        opened("nats://127.0.0.1:1/l?allow_lazy_sync=1")
    from counterfoil.ledgers.urls import NatsUrl

    for _ in range(2):
        with pytest.raises(UsageError, match="no stream"):
            NatsUrl(servers=f"127.0.0.1:{nats.nodes[0].port}", stream=stream, allow_lazy_sync=True).check()


# --- a ledger that went back in time


@pytest.mark.rule("L14")
def test_a_copy_of_a_stream_takes_nothing_until_a_person_accepts_it(open_ledger):
    ledger = open_ledger()
    epoch = ledger.register("before")
    ledger.append(entry("slot", epoch))
    where = ledger._store.subjects.generation
    deadline = time.monotonic() + PATIENCE_S
    here = ledger._run(ledger._store.snapshot([where], deadline=deadline))[where]
    elsewhere = msgspec.structs.replace(messages.generation_of(here), created="2020-01-01T00:00:00Z")
    what = Put(subject=where, data=messages.encode(elsewhere), expected=here.sequence)
    ledger._run(ledger._store.put(what, deadline=deadline))
    again = open_ledger()
    assert again.restored()
    for refused in (lambda: again.register("x"), lambda: again.append(entry("new"))):
        with pytest.raises(LedgerReadOnly) as raised:
            refused()
        assert raised.value.code == "ledger-restored"
    assert slots_of(again) == ["slot"]
    assert again.accept_restore(by="ada", reason="a drill") == 2
    assert again.restored() is None
    assert again.accepted_generation() == 2
    assert again.gone(epoch)
    assert again.register("after").startswith("2.")
    again.append(entry("new"))


@pytest.mark.rule("L14")
def test_a_position_that_is_given_out_twice_stops_a_process_that_saw_the_first(own_nats):
    node = own_nats.nodes[0]
    ledger = opened(f"{node.url}/l?beat=60&monitor=http://127.0.0.1:{node.monitor}")
    ledger.append(entry("slot"))
    kept, store = own_nats.folder / "kept", own_nats.folder / node.name
    node.stop()
    subprocess.run(["cp", "-a", store, kept], check=True)  # with its owner: servers do not run as root
    node.start()
    own_nats.ready()
    for n in range(5):
        ledger.append(entry(f"lost/{n}"))
    node.stop()
    shutil.rmtree(store)
    kept.rename(store)
    node.start()
    own_nats.ready()
    with pytest.raises(LedgerUnavailable):
        ledger.append(entry("new"))
    with pytest.raises(LedgerReadOnly, match="gave out"):
        ledger.append(entry("newer"))
    ledger.close()


@pytest.fixture
def guarded_nats(tmp_path: Any) -> Iterator[tuple[NatsNode, str]]:
    """A server that asks for a password over TLS, and the certificate of its authority."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    folder = server_folder("nats-tls")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    (folder / "server.pem").chmod(0o644)
    port, monitor = free_ports(2)
    config = (
        f'listen: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\njetstream {{ store_dir: "{folder}/n0" }}\n'
        f'authorization {{ user: ada, password: "p@ss/word" }}\n'
        f'tls {{ cert_file: "{folder}/server.pem", key_file: "{folder}/server.pem" }}\n'
    )
    node = NatsNode("n0", folder, config=config, port=port, monitor=monitor)
    node.start()
    until(node.healthy)
    yield node, str(tmp_path / "ca.pem")
    node.stop(signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_server_is_logged_into_over_tls_and_refuses_strangers(nats, guarded_nats):
    node, ca = guarded_nats
    where = f"127.0.0.1:{node.port}/l?allow_lazy_sync=1"
    ledger = opened(f"nats://ada:p%40ss%2Fword@{where}&ca={ca}")
    ledger.append(entry("slot"))
    assert slots_of(ledger) == ["slot"]
    ledger.close()
    for login, more in (("ada:wrong", f"&ca={ca}"), ("ada:p%40ss%2Fword", "")):
        with pytest.raises(LedgerUnavailable, match="no connection") as refused:
            opened(f"nats://{login}@{where}{more}")
        assert "p@ss" not in str(refused.value)
        assert "wrong" not in str(refused.value)
    # Where an authority is named, nothing is said in the clear.
    with pytest.raises(LedgerUnavailable, match="TLS"):
        opened(f"{nats.url}/l?allow_lazy_sync=1&ca={ca}")


@pytest.mark.rule("L12")
def test_a_forked_child_is_refused_and_its_parent_goes_on(open_ledger):
    ledger = open_ledger()
    ledger.append(entry("slot"))
    child = os.fork()
    if not child:
        try:
            ledger.append(entry("child"))
        except ForkedLedger:
            ledger.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    ledger.append(entry("parent"))
    assert slots_of(ledger) == ["slot", "parent"]


@pytest.mark.rule("E1", "E2")
def test_an_effect_leaves_two_records_and_is_replayed_by_another_runtime(nats, stream):
    url = f"{nats.url}/{stream}?allow_lazy_sync=1"
    for number in range(2):
        with Runtime(url) as runtime, runtime.run("r") as run:
            outcome = run.effect("pay", run=lambda number=number: 7 + number, reconcile=lambda: None)
            assert isinstance(outcome, Accepted)
            assert outcome.proof == 7
    with Runtime(url) as runtime:
        assert len(runtime.ledger.read(runtime.namespace, "r")) >= 2


def test_where_no_server_runs_that_is_what_is_said():
    with pytest.raises(LedgerUnavailable, match="no connection to NATS") as refused:
        opened("nats://127.0.0.1:1/shop")
    assert (refused.value.code, refused.value.effect_ran) == ("ledger-unreachable", "no")

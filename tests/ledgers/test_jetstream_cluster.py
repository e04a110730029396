"""The JetStream ledger on three servers: a majority is what acknowledges, and without one nothing is."""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import Any

import pytest

from counterfoil.errors import LedgerUnavailable
from counterfoil.protocol.records import Entry, Record
from tests.ledgers.postgres_support import Doing, opened
from tests.ledgers.support import entry, hurry, intent, slots_of
from tests.servers.nats import NatsCluster, NatsNode
from tests.torture.failovers import leader

TIMEOUT_S = 2.0
# What may be added to the deadline: a connection that is being made, and a machine that stands still.
LATE_S = 60.0


def ledger_of(cluster: NatsCluster, *, first: int = 0) -> Any:
    """Open the ledger, connected to one of the nodes."""
    nodes = cluster.nodes[first:] + cluster.nodes[:first]
    servers = ",".join(node.url.removeprefix("nats://") for node in nodes)
    monitors = ",".join(f"http://127.0.0.1:{node.monitor}" for node in nodes)
    return opened(f"nats://{servers}/torture?monitor={monitors}")


def led_by(cluster: NatsCluster) -> NatsNode:
    found = leader(cluster)
    assert found is not None
    return found


def answer(ledger: Any, one: Entry, *, patience_s: float = 60.0) -> Record:
    """Append until there is an answer: while the servers choose a leader, an append may be refused at its deadline."""
    give_up = time.monotonic() + patience_s
    while True:
        try:
            record: Record = ledger.append(one, settle=True)
        except LedgerUnavailable:
            assert time.monotonic() < give_up
        else:
            return record


@pytest.mark.rule("L2", "L3", "L7")
def test_no_acknowledged_record_is_lost_by_dead_and_stopped_servers_and_no_append_outlasts_its_deadline(nats_cluster):
    ledgers = [ledger_of(nats_cluster, first=number) for number in range(3)]
    assert ("ok", "replicas", "3", "") in ledgers[0].diagnose()
    epoch = ledgers[0].register("one")
    told = [ledgers[0].append(intent(f"slot/{n}", epoch)).slot for n in range(10)]
    dead = led_by(nats_cluster)
    dead.stop(signal.SIGKILL)
    # Two of three are gone, the leader among them: whatever is asked ends in time, and nothing is acknowledged.
    other = next(node for node in nats_cluster.nodes if node is not dead)
    other.stop(signal.SIGKILL)
    lost = entry("alone")
    for ledger in ledgers:
        hurry(ledger, TIMEOUT_S)
    began = time.monotonic()
    for trying in [Doing(partial(ledger.append, lost)) for ledger in ledgers]:
        with pytest.raises(LedgerUnavailable):
            trying.result()
    assert time.monotonic() - began < TIMEOUT_S + LATE_S
    for node in (dead, other):
        node.start()
    nats_cluster.ready()
    told += [answer(ledger, lost).slot for ledger in ledgers[:1]]
    # One is stopped, and comes back behind the others.
    stopped = next(node for node in nats_cluster.nodes if node is not led_by(nats_cluster))
    stopped.send(signal.SIGSTOP)
    told += [answer(ledgers[1], entry(f"without/{n}")).slot for n in range(3)]
    stopped.send(signal.SIGCONT)
    for ledger in [*ledgers, ledger_of(nats_cluster, first=nats_cluster.nodes.index(stopped))]:
        give_up = time.monotonic() + 60
        while True:
            try:
                assert slots_of(ledger) == told
                break
            except LedgerUnavailable:
                assert time.monotonic() < give_up
        ledger.close()

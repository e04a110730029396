"""The stream: made if it is not there, and refused where its settings can lose a record."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from counterfoil.errors import LedgerUnavailable, UsageError
from counterfoil.ledgers.jetstream import messages, troubles
from counterfoil.ledgers.jetstream.link import Unreachable
from counterfoil.ledgers.jetstream.messages import Generation
from counterfoil.ledgers.jetstream.store import Put, Store

# The first with expectations about other subjects than a message's own, also in clusters.
VERSION_MIN: Final = (2, 12)
_PROBE_S: Final = 1.0
_DEFAULT_MONITOR_PORT: Final = 8222
_WANTED: Final[Mapping[str, Any]] = {
    "retention": "limits",
    "storage": "file",
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "new",
    "allow_direct": True,
    "deny_delete": True,
    "allow_rollup_hdrs": False,
}
_WHY: Final[Mapping[str, str]] = {
    "retention": "records go when they are consumed",
    "storage": "a restart loses every record",
    "max_msgs": "old records make room for new ones, or none are taken any more",
    "max_bytes": "old records make room for new ones, or none are taken any more",
    "max_age": "records expire",
    "max_msgs_per_subject": "the message that fills a slot could make room for another",
    "max_msg_size": "records may be refused",
    "discard": "old records make room for new ones",
    "allow_direct": "reads would go nowhere",
    "deny_delete": "single records could be deleted",
    "allow_rollup_hdrs": "one message could remove all others",
}


def complaints(config: Mapping[str, Any]) -> list[str]:
    """Say what of a stream's settings can lose a record, or that it is no stream for a ledger."""
    found = [
        f"{name} is {config.get(name)!r}, not {wanted!r}: {_WHY[name]}"
        for name, wanted in _WANTED.items()
        if config.get(name, False if wanted is False else None) != wanted
    ]
    if config.get("no_ack"):
        found.append("no_ack is set: nothing is acknowledged")
    if config.get("persist_mode", "default") not in ("", "default"):
        found.append(f"persist_mode is {config['persist_mode']!r}: records are acknowledged before they are written")
    if config.get("sealed"):
        found.append("it is sealed: nothing is recorded any more")
    if config.get("allow_msg_ttl"):
        found.append("allow_msg_ttl is set: a record could expire")
    found += [
        f"it has a {name}" for name in ("mirror", "sources", "republish", "subject_transform") if config.get(name)
    ]
    return found


async def prepare(store: Store, *, replicas: int | None, create: bool, timeout_s: float) -> None:
    """Make the stream if it is not there, and check its settings.

    Raises:
        UsageError: the stream can lose records.
        LedgerUnavailable: no server makes or shows a stream.
    """
    deadline = time.monotonic() + timeout_s
    name = store.subjects.stream
    answer = await store.api(f"STREAM.INFO.{name}", {}, deadline=deadline)
    if answer.get("error", {}).get("err_code") == troubles.NOT_FOUND:
        if not create:
            raise UsageError(
                f"there is no stream {name}", hint="is the URL right? A runtime makes it", code="no-ledger"
            )
        number = replicas or (3 if "cluster" in store.server else 1)
        wanted = {"name": name, "subjects": [store.subjects.all], "num_replicas": number, **_WANTED}
        wanted["description"] = "Counterfoil's ledger"
        answer = await store.api(f"STREAM.CREATE.{name}", wanted, deadline=deadline)
        if answer.get("error", {}).get("err_code") == troubles.NAME_IN_USE:
            answer = await store.api(f"STREAM.INFO.{name}", {}, deadline=deadline)
    if "error" in answer:
        raise troubles.unavailable(f"{answer['error'].get('description')} [{answer['error'].get('err_code')}]")
    if found := complaints(answer["config"]):
        raise UsageError(
            f"the stream {name} is not fit for a ledger: {'; '.join(found)}",
            hint="give the ledger a stream of its own: name one that is not there, and it is made",
            code="ledger-lossy",
        )
    # The first message of a ledger is its generation. Where it is not there and others were, they were purged with it.
    created = messages.PURGED if answer["state"]["last_seq"] else answer["created"]
    first = Generation(generation=1, created=created)
    put = Put(subject=store.subjects.generation, data=messages.encode(first), expected=0)
    await store.put(put, deadline=deadline)
    store.seen = max(store.seen, await store.last(store.subjects.all, deadline=deadline))


async def reach(store: Store, *, timeout_s: float) -> None:
    """Connect to a server that a ledger can be on.

    Raises:
        UsageError: it is too old, or has no JetStream.
        LedgerUnavailable: none can be reached.
    """
    try:
        await store.link(time.monotonic() + timeout_s)
    except Unreachable as error:
        raise LedgerUnavailable(
            f"no connection to NATS: {error}",
            code="ledger-unreachable",
            hint="check the servers, the user and the password of the URL, and whether they run",
            effect_ran="no",
        ) from error
    version = tuple(int(part) for part in store.server["version"].split("-")[0].split(".")[:2])
    if version < VERSION_MIN:
        raise UsageError(
            f"this NATS server is {store.server['version']}",
            hint=f"the ledger needs {'.'.join(map(str, VERSION_MIN))} or later, on all servers",
            code="server-too-old",
        )
    if not store.server.get("jetstream"):
        raise UsageError("this NATS server has no JetStream", hint="configure jetstream { store_dir: … }")


def lazy(what: str) -> UsageError:
    """Make the error for servers that may acknowledge before they sync."""
    return UsageError(
        what,
        hint="set jetstream { sync_interval: always } on every server and name their monitoring ports with"
        " monitor=http://host:8222; or accept it with allow_lazy_sync=1",
        code="lazy-sync",
    )


def sync_policy(servers: Sequence[str], monitors: Sequence[str]) -> str:
    """Ask the servers' monitoring how they sync: `always`, `lazy`, or `unknown` where no majority of them says it.

    A client is not told by NATS itself, so each server needs an HTTP monitoring port. A majority is enough, since that
    is what acknowledges a record, and a ledger must open while a server is down.

    Args:
        servers: the servers of the URL.
        monitors: their monitoring addresses; none: port 8222 of each is tried.
    """
    asked = monitors or [f"http://{urlsplit(server).hostname}:{_DEFAULT_MONITOR_PORT}" for server in servers]
    said = [_synced(address) for address in asked]
    if any(one is False for one in said):
        return "lazy"
    return "always" if 2 * sum(map(bool, said)) > len(said) else "unknown"


def _synced(address: str) -> bool | None:
    # No proxy of the environment: the servers are asked themselves.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{address.rstrip('/')}/varz", timeout=_PROBE_S) as answer:
            config = json.load(answer)["jetstream"]["config"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return bool(config.get("sync_always"))

"""What the guarantees of a JetStream ledger rest on, looked at now, each with its mend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from counterfoil.ledgers.jetstream.opening import complaints
from counterfoil.ledgers.rows import OwnerRow

Finding = tuple[str, str, str, str]

_SYNC: Final[Mapping[str, Finding]] = {
    "always": ("ok", "sync-interval", "always: what is acknowledged is on the disk", ""),
    "lazy": (
        "error",
        "sync-interval",
        "not always: a power loss can take records that were acknowledged (allow_lazy_sync is set)",
        "set jetstream { sync_interval: always } on every server",
    ),
    "unknown": (
        "warning",
        "sync-interval",
        "not known: a power loss may take records that were acknowledged (allow_lazy_sync is set)",
        "set sync_interval: always on every server, and name their monitoring ports with monitor=",
    ),
}


def diagnose(
    info: Mapping[str, Any], *, version: str, sync: str, reason: str | None, owners: Sequence[OwnerRow]
) -> list[Finding]:
    """Return findings: (level, subject, found, mend).

    Args:
        info: what the server says of the stream.
        version: the server's version.
        sync: `always`, `lazy` or `unknown`.
        reason: why it counts as restored, or None.
        owners: the lives that are not known to be over.
    """
    return [
        ("ok", "server", f"NATS {version}", ""),
        _stream(info["config"]),
        _SYNC[sync],
        *_replicas(info),
        _generation(reason),
        _owners(owners),
    ]


def _stream(config: Mapping[str, Any]) -> Finding:
    found = "; ".join(complaints(config))
    mend = "set the stream's configuration back, and look at what was lost"
    return ("error", "stream", found, mend) if found else ("ok", "stream", f"{config['name']} loses nothing", "")


def _replicas(info: Mapping[str, Any]) -> list[Finding]:
    number = info["config"]["num_replicas"]
    cluster = info.get("cluster", {})
    behind = [one["name"] for one in cluster.get("replicas", ()) if not one.get("current") or one.get("offline")]
    found: list[Finding] = []
    if number == 1 and cluster.get("name"):
        mend = "edit the stream to 3 replicas"
        found.append(("warning", "replicas", "1, in a cluster: the ledger is down with one server", mend))
    else:
        found.append(("ok", "replicas", str(number), ""))
    if behind:
        mend = "start these servers, or replace them"
        found.append(("warning", "replicas-behind", ", ".join(behind), mend))
    return found


def _generation(reason: str | None) -> Finding:
    mend = "look at what was lost, then run `counterfoil accept-restore --by YOU --reason WHY`"
    return ("error", "generation", reason, mend) if reason else ("ok", "generation", "as it was left", "")


def _owners(owners: Sequence[OwnerRow]) -> Finding:
    silent = [owner.label or owner.epoch for owner in owners if not owner.alive]
    found = f"{len(owners) - len(silent)} alive"
    if not silent:
        return "ok", "owners", found, ""
    mend = "call their runs again, or recover(): unresolved effects are then reconciled"
    return "warning", "owners", f"{found}, silent: {', '.join(silent)}", mend

"""What the promises of a stream of events rest on, each with what it means and its mend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from counterfoil.recipients.events.streams import StreamFacts, read

Finding = tuple[str, str, str, str]

_TYPICAL_WINDOW_S: Final = 120.0
_LIMITS: Final = ("max_msgs", "max_bytes", "max_msgs_per_subject", "max_age_s")


def diagnose(said: Mapping[str, Any], *, version: str) -> list[Finding]:
    """Return findings: (level, subject, found, mend).

    Args:
        said: the server's answer to `STREAM.INFO`.
        version: the server's version.
    """
    server: Finding = ("ok", "server", f"NATS {version}", "")
    config = said.get("config")
    if not isinstance(config, Mapping):
        error = said.get("error")
        why = error.get("description") if isinstance(error, Mapping) else None
        mend = "make the stream, or give this user the right to ask for $JS.API.STREAM.INFO"
        return [server, ("error", "stream", str(why or "the server does not show it"), mend)]
    facts = read(dict(config))
    return [
        server,
        _acknowledges(config, facts),
        _limits(facts),
        _retention(facts),
        _window(facts),
        _storage(facts),
        *_replicas(said, facts),
    ]


def _acknowledges(config: Mapping[str, Any], facts: StreamFacts) -> Finding:
    if facts.no_ack:
        return "error", "no-ack", "it acknowledges nothing, so every event is refused", "set no_ack to false"
    if config.get("sealed"):
        return "error", "sealed", "it takes nothing any more, so every event fails", "name another stream"
    if facts.details.get("persist_mode", "default") not in ("", "default"):
        what = "it acknowledges what is not written yet: a crash of the server can take it"
        return "warning", "persist-mode", f"{facts.details['persist_mode']}: {what}", "set persist_mode to default"
    return "ok", "no-ack", "it acknowledges", ""


def _limits(facts: StreamFacts) -> Finding:
    set_ = ", ".join(f"{name}={facts.details[name]:g}" for name in _LIMITS if name in facts.details)
    if not set_:
        return "ok", "limits", "none", ""
    if "may-be-dropped" in facts.promises:
        what = "old events make room for new ones; a look-up does not find what is gone, so it is uncertain"
        mend = "raise the limits, set discard to new, or look for what is uncertain sooner than they drop it"
        return "warning", "limits", f"{set_}: {what}", mend
    return "ok", "limits", f"{set_}: where it is full an event is not taken", ""


def _retention(facts: StreamFacts) -> Finding:
    retention = facts.details.get("retention", "unknown")
    if retention == "limits":
        return "ok", "retention", "limits", ""
    what = "events go when they are consumed; a look-up does not find them then, so what is uncertain stays so"
    return (
        "warning",
        "retention",
        f"{retention}: {what}",
        "use a stream with retention limits, and source this one from it",
    )


def _window(facts: StreamFacts) -> Finding:
    window_s = facts.details.get("duplicate_window_s", 0.0)
    found = f"{window_s:g} s: the same message id is stored once within it"
    if window_s >= _TYPICAL_WINDOW_S:
        return "ok", "duplicate-window", found, ""
    mend = "set duplicate_window to 120 s or more, for publishers that send again by themselves; this library does not"
    return "warning", "duplicate-window", f"{found}, and again after it", mend


def _storage(facts: StreamFacts) -> Finding:
    storage = facts.details.get("storage", "unknown")
    if storage == "file":
        return "ok", "storage", "file", ""
    return "warning", "storage", f"{storage}: a restart of the server loses every event", "use a stream on files"


def _replicas(said: Mapping[str, Any], facts: StreamFacts) -> list[Finding]:
    number = facts.details["replicas"]
    level = "ok" if isinstance(number, int) and number > 1 else "warning"
    what = "" if level == "ok" else ": what is acknowledged is on one server, and goes with its disk"
    found: list[Finding] = [(level, "replicas", f"{number}{what}", "" if level == "ok" else "use three in a cluster")]
    cluster = said.get("cluster")
    replicas = cluster.get("replicas") if isinstance(cluster, Mapping) else None
    behind = [str(one.get("name")) for one in replicas or () if not one.get("current") or one.get("offline")]
    if behind:
        mend = "start these servers, or replace them"
        found.append(("warning", "replicas-behind", ", ".join(behind), mend))
    return found

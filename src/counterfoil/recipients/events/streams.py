"""What a stream's configuration says of an acknowledgement: how many copies, what may be dropped, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

# An acknowledgement is the broker's, and says nothing of who reads (rule V5). How often its servers sync is not to be
# learnt over this protocol.
ALWAYS_OPEN: Final = ("consumers-not-established", "sync-policy-unknown")
_LIMITS: Final = ("max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")
_WORDS: Final = ("storage", "retention", "discard", "persist_mode")
_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What is known of a stream.

    Attributes:
        known: whether its configuration could be read.
        no_ack: it acknowledges nothing.
        details: for the evidence.
        promises: what an acknowledgement leaves open, and what it says.
    """

    known: bool = False
    no_ack: bool = False
    details: dict[str, Any] = field(default_factory=lambda: {"sync_interval": "unknown", "replicas": "unknown"})
    promises: tuple[str, ...] = (*ALWAYS_OPEN, "replicas-unknown")


UNKNOWN: Final = StreamFacts()


def read(config: Any) -> StreamFacts:
    """Read a stream's configuration as the server tells it."""
    if not isinstance(config, dict):
        return UNKNOWN
    replicas = config.get("num_replicas")
    details: dict[str, Any] = {"sync_interval": "unknown", "replicas": replicas, "no_ack": bool(config.get("no_ack"))}
    details |= {word: config[word] for word in _WORDS if isinstance(config.get(word), str)}
    # 0 and -1 mean: no limit.
    details |= {limit: config[limit] for limit in _LIMITS if type(config.get(limit)) is int and config[limit] > 0}
    for what, said in (("max_age", "max_age_s"), ("duplicate_window", "duplicate_window_s")):
        if type(config.get(what)) is int and config[what] > 0:
            details[said] = config[what] / _NANOSECONDS
    promises: tuple[str, ...] = ALWAYS_OPEN
    if type(replicas) is int:
        promises += ("one-copy",) if replicas == 1 else ("majority-of-replicas",)
    if config.get("storage") == "memory":
        promises += ("in-memory",)
    may_drop = ("max_msgs", "max_bytes", "max_msgs_per_subject", "max_age_s")
    if any(limit in details for limit in may_drop) and details.get("discard") != "new":
        promises += ("may-be-dropped",)
    return StreamFacts(known=True, no_ack=details["no_ack"], details=details, promises=promises)

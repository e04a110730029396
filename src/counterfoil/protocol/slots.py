"""Names of slots. No two names meet: `/` and `%` inside a name are escaped, so that parts stay parts."""

from __future__ import annotations

from typing import Final

SYSTEM_NAMESPACE: Final = ""
SYSTEM_RUN: Final = "ledger"

BIRTH: Final = "birth"
STARTED: Final = "run/started"
FINISHED: Final = "run/finished"
TOMBSTONE: Final = "run/tombstone"


def escape(name: str) -> str:
    """Escape a name for use as one part of a slot."""
    if "/" not in name and "%" not in name:
        return name
    return name.replace("%", "%25").replace("/", "%2F")


def unescape(part: str) -> str:
    """Give back the name that `escape` was given."""
    return part.replace("%2F", "/").replace("%25", "%")


def step(name: str) -> str:
    """Slot of a step's result."""
    return f"step/{escape(name)}"


def step_failed(name: str, attempt: int) -> str:
    """Slot of a failed attempt of a step with a retry policy."""
    return f"step/{escape(name)}/{attempt}/failed"


def transaction(name: str, attempt: int) -> str:
    """Slot of a transaction's receipt: it is committed with the application's writes, or holds that it is not."""
    return f"transaction/{escape(name)}/{attempt}"


def intent(name: str, attempt: int) -> str:
    """Slot whose filling is the right to send."""
    return f"effect/{escape(name)}/{attempt}/intent"


def outcome(name: str, attempt: int) -> str:
    """Slot of the first and only outcome of an attempt."""
    return f"effect/{escape(name)}/{attempt}/outcome"


def of_first_attempt(name: str) -> tuple[str, str]:
    """Slots of the first intent of an effect and of its outcome, which are all that most effects have."""
    part = escape(name)
    return f"effect/{part}/1/intent", f"effect/{part}/1/outcome"


def released(name: str, attempt: int) -> str:
    """Slot that says: `run` of this attempt is over without an outcome."""
    return f"effect/{escape(name)}/{attempt}/released"


def buried(name: str, attempt: int) -> str:
    """Slot of what a pruned run keeps of an attempt."""
    return f"effect/{escape(name)}/{attempt}/buried"


def note(name: str, number: int) -> str:
    """Slot of the n-th note (late evidence, decision) about an effect; n counts from 1 without gaps."""
    return f"effect/{escape(name)}/note/{number}"


def sleep(name: str) -> str:
    """Slot of a sleep's deadline."""
    return f"park/sleep/{escape(name)}"


def woken(name: str) -> str:
    """Slot that says: this sleep has passed once, on whatever clock."""
    return f"park/sleep/{escape(name)}/woken"


def wait(event: str, event_id: str) -> str:
    """Slot that says: the run waits for this delivery."""
    return f"park/wait/{escape(event)}/{escape(event_id)}"


def event(event_name: str, event_id: str) -> str:
    """Slot of a delivery."""
    return f"event/{escape(event_name)}/{escape(event_id)}"


def claim(number: int) -> str:
    """Slot of the n-th life to carry a run's body."""
    return f"run/claim/{number}"


def claim_released(number: int) -> str:
    """Slot that says: the life of the n-th claim stopped carrying the body of its own accord; 0: the first life."""
    return f"run/claim/{number}/released"


def quarantine(number: int) -> str:
    """Slot that says: the body took its process with it too often; nobody carries it until this is lifted."""
    return f"run/quarantine/{number}"


def lifted(number: int) -> str:
    """Slot that says who lifted the n-th quarantine."""
    return f"run/quarantine/{number}/lifted"


def accepted_restore(generation: int) -> str:
    """Slot that says who accepted a ledger that went back in time."""
    return f"accepted-restore/{generation}"


def effect_of(slot: str) -> tuple[str, int, str] | None:
    """Take apart a slot of an effect: (name, attempt or note number, `intent|outcome|released|buried|note`)."""
    parts = slot.split("/")
    if len(parts) != 4 or parts[0] != "effect":
        return None
    if parts[2] == "note":
        return unescape(parts[1]), int(parts[3]), "note"
    return unescape(parts[1]), int(parts[2]), parts[3]


def head(slot: str) -> str:
    """Return the part of a slot that one name of a body owns, `park/wait/<event>/<id>` for example."""
    parts = slot.split("/")
    if parts[0] == "park":
        return "/".join(parts[:4] if parts[1] == "wait" else parts[:3])
    return "/".join(parts[:2])


def effect_head(name: str) -> str:
    """Return the head of an effect's slots."""
    return f"effect/{escape(name)}"


def transaction_head(name: str) -> str:
    """Return the head of a transaction's slots."""
    return f"transaction/{escape(name)}"


def names_in(slot: str) -> list[str]:
    """Give back the names inside a slot: none for the run's own, two for an event or a wait."""
    parts = slot.split("/")
    if parts[0] in ("effect", "step", "transaction"):
        named = parts[1:2]
    elif parts[0] == "park":
        named = parts[2:4] if parts[1] == "wait" else parts[2:3]
    else:
        named = parts[1:3] if parts[0] == "event" else []
    return [unescape(part) for part in named]

"""What one trial sees of a body: what it asked for, what its handlers did, and what became of its effects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sized
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from counterfoil.errors import CounterfoilError, NotSerializable
from counterfoil.protocol import codec
from counterfoil.runtime.raised import raised_at
from counterfoil.testing.recipients.faulty import Faulty
from counterfoil.testing.stage import Clock

SHOWN: Final = 60
WHOLE: Final = 2_000
TIMELINE_MAX: Final = 400
CYCLE_MAX: Final = 6
TIMES: Final = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One thing that breaks.

    Attributes:
        code: a stable slug.
        name: the effect or step that it is about; "" if it is about the body.
        text: what is wrong, in the user's terms.
        hint: what mends it.
        command_hint: the same for who has called the command line, where that differs.
    """

    code: str
    name: str
    text: str
    hint: str = ""
    command_hint: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.hint})" if self.hint else self.text


@dataclass(slots=True)
class Performed:
    """One call of a `run`: the proofs that it returned (more than one if the request was doubled), and when.

    One that arrived `late` came after the recipient had been asked about it.
    """

    key: str
    proofs: list[bytes] = field(default_factory=list)
    error: BaseException | None = None
    at: float = 0.0
    late: bool = False


@dataclass(slots=True)
class Looked:
    """One call of a `reconcile`: what it answered, as JSON (None: nothing found), or what it raised."""

    found: bytes | None = None
    error: BaseException | None = None
    hidden: bool = False


@dataclass(slots=True)
class EffectSettings:
    """What a body said of an effect."""

    visibility_s: float = 0.0
    askable: bool = True
    request: Any = None
    verified: bool = False
    handler: Any = None


@dataclass(slots=True)
class Notes:
    """Everything that is noted in one trial."""

    clock: Clock
    names: dict[str, tuple[str, int]] = field(default_factory=dict)
    performed: dict[str, list[Performed]] = field(default_factory=lambda: defaultdict(list))
    looked: dict[str, list[Looked]] = field(default_factory=lambda: defaultdict(list))
    late: dict[str, tuple[Performed, Callable[[Any], Awaitable[Any]]]] = field(default_factory=dict)
    reconcilers: dict[str, Callable[..., Any]] = field(default_factory=dict)
    requested: dict[tuple[str, str], Any] = field(default_factory=dict)
    settings: dict[str, EffectSettings] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    awaited: dict[str, tuple[str, str]] = field(default_factory=dict)
    overlapping: bool = False
    sights: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    mistakes: list[Mistake] = field(default_factory=list)
    timeline: list[str] = field(default_factory=list)
    requests: int = 0
    began: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.clock.now()

    def say(self, who: str, what: str) -> None:
        """Note an event for people."""
        if len(self.timeline) < TIMELINE_MAX:
            self.timeline.append(f"  t={round(self.clock.now() - self.began, 3):<6g} {who:<10} {what}")

    def mistake(self, code: str, name: str, text: str, *, hint: str = "", command_hint: str = "") -> None:
        """Note a mistake; the same one is noted once."""
        found = Mistake(code=code, name=name, text=text, hint=hint, command_hint=command_hint)
        if found not in self.mistakes:
            self.mistakes.append(found)

    def name_of(self, key: str) -> str:
        """Return the name of the effect that has a key."""
        return self.names.get(key, (key, 1))[0]

    def made(self, name: str, *, late: bool = True) -> list[bytes]:
        """Return the proofs that the runs of an effect returned; without `late`: before anybody had asked."""
        return [
            proof
            for key, performed in self.performed.items()
            if self.name_of(key) == name
            for each in performed
            if late or not each.late
            for proof in each.proofs
        ]


class Sight:
    """Counts what reaches the recipients, by where it was sent from.

    Args:
        recipients: recipients that keep a log.
        sent: says how much has reached other ones: a number, or a collection.
    """

    def __init__(self, recipients: list[Faulty], sent: Callable[[], int | Sized] | None) -> None:
        self.recipients = recipients
        self._sent = sent
        self._seen = self.count()

    def count(self) -> int:
        """Return how much has reached the recipients that only `sent` knows of."""
        if self._sent is None:
            return 0
        found = self._sent()
        return found if isinstance(found, int) else len(found)

    def since(self) -> int:
        """Return how much has reached them since the last look."""
        count = self.count()
        more, self._seen = count - self._seen, count
        return max(0, more)


def plain(value: Any) -> bytes | None:
    """Return a proof as canonical JSON; None for what is none."""
    try:
        return codec.encode(value, what="the proof")
    except NotSerializable:
        pass
    try:
        dumped = value.model_dump(mode="json") if hasattr(value, "model_dump") else msgspec.to_builtins(value)
        return codec.encode(dumped, what="the proof")
    except Exception:  # noqa: BLE001 - whatever the user's type does, it is no JSON
        return None


def shown(value: Any, most: int = SHOWN) -> str:
    """Show a value in one short line."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def whole(value: Any) -> str:
    """Show a value in one line, with all that a person can use; an error with its hint and where it was raised."""
    if not isinstance(value, BaseException):
        return shown(value, WHOLE)
    text = f"{type(value).__name__}({str(value)!r})" if isinstance(value, CounterfoilError) else repr(value)
    where = raised_at(value)
    return f"{shown(text.encode(), WHOLE)} at {where}" if where else shown(text.encode(), WHOLE)


def folded(timeline: list[str]) -> list[str]:
    """Fold events that come again and again into one round of them, with how often they came."""
    said = [line.split(None, 1)[1] for line in timeline]
    lines: list[str] = []
    at = 0
    while at < len(said):
        size, times = _round(said, at)
        lines += timeline[at : at + size]
        if times > 1:
            lines[-1] += f" ({TIMES}{times})" if size == 1 else f" (these {size} lines {TIMES}{times})"
        at += size * times
    return lines


def _round(said: list[str], at: int) -> tuple[int, int]:
    """Return how many lines from here on come again at once, and how often they come."""
    for size in range(1, CYCLE_MAX + 1):
        times = 1
        while said[at : at + size] == said[at + size * times : at + size * (times + 1)]:
            times += 1
        if times > 1:
            return size, times
    return 1, 1

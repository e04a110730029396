"""Contracts out of files: the only part of a contract that does I/O."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from counterfoil.broker.contracts import Keyed, LookUp, Meaning, Policy, Proof, Terms, When
from counterfoil.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Contract(Terms):
    """What one recipient's answers prove, and which retries and look-ups it supports.

    Args:
        name: goes into every evidence that this contract gave its meaning.
        statuses: what a final status means instead of the default: `accepted`, `failed` or `uncertain`.
        when: meanings that depend on the body; the first that fits counts, before `statuses`.
        proof: where an acknowledgement has the recipient's name for the effect: a JSON pointer (`/data/id`) or the
            name of a header (`Location`); None: its status is all.
        promises: slugs for what an acknowledgement promises or leaves open, added to each one's evidence.
        idempotency: how the recipient recognises repeats, None if it does not.
        keep_key: all attempts of an effect share one key.
        visibility_s: seconds that the recipient may take to show an effect.
        look_up: the read that says what became of an effect; None: it cannot be asked.
        retryable: whether another attempt may follow a failed one: for all, or for these statuses.
        policy: what the outbox may do at most; None: follows from the rest.
        resends: how often the outbox may send again with the same key, under `at-least-once-keyed` alone.

    Raises:
        UsageError: something in it is wrong, or does not go together.
    """

    def __init__(
        self,
        *,
        name: str,
        statuses: Mapping[int, Meaning] | None = None,
        when: Iterable[When | Mapping[str, Any]] = (),
        proof: Proof | str | Mapping[str, str] | None = None,
        promises: Iterable[str] = (),
        idempotency: Keyed | Mapping[str, Any] | None = None,
        keep_key: bool = False,
        visibility_s: float = 0.0,
        look_up: LookUp | Mapping[str, Any] | None = None,
        retryable: bool | Collection[int] = False,
        policy: Policy | None = None,
        resends: int = 0,
    ) -> None:
        given: dict[str, Any] = {
            "name": name,
            "statuses": {} if statuses is None else statuses,
            "when": when,
            "proof": proof,
            "promises": promises,
            "idempotency": idempotency,
            "keep_key": keep_key,
            "visibility_s": visibility_s,
            "look_up": look_up,
            "retryable": retryable,
            "policy": policy,
            "resends": resends,
        }
        Terms.__init__(self, **given)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a contract from a TOML file.

        Raises:
            UsageError: the file cannot be read, is no TOML, or is no contract; the message says where.
        """
        if not isinstance(path, str | os.PathLike):
            raise UsageError(f"a contract is read from a path, not {type(path).__name__}", code="bad-contract")
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(
                f"the contract {os.fspath(path)!r} cannot be read: {error.strerror}", code="bad-contract"
            ) from None
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"the contract {os.fspath(path)!r} is no TOML: {error}", code="bad-contract") from None
        return cls.of(data, where=f"the contract {os.fspath(path)!r}")

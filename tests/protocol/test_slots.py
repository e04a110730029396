"""The names of slots are what older ledgers hold: each is what it always was, and gives back its names."""

from __future__ import annotations

import pytest

from counterfoil.protocol import slots

NAME = "a/b%2Fc"
PART = "a%2Fb%252Fc"


@pytest.mark.rule("L1")
@pytest.mark.parametrize(
    ("slot", "text", "head", "names"),
    [
        (slots.step(NAME), f"step/{PART}", f"step/{PART}", [NAME]),
        (slots.step_failed(NAME, 2), f"step/{PART}/2/failed", f"step/{PART}", [NAME]),
        (slots.transaction(NAME, 2), f"transaction/{PART}/2", slots.transaction_head(NAME), [NAME]),
        (slots.intent(NAME, 2), f"effect/{PART}/2/intent", slots.effect_head(NAME), [NAME]),
        (slots.outcome(NAME, 2), f"effect/{PART}/2/outcome", f"effect/{PART}", [NAME]),
        (slots.released(NAME, 2), f"effect/{PART}/2/released", f"effect/{PART}", [NAME]),
        (slots.buried(NAME, 2), f"effect/{PART}/2/buried", f"effect/{PART}", [NAME]),
        (slots.note(NAME, 2), f"effect/{PART}/note/2", f"effect/{PART}", [NAME]),
        (slots.sleep(NAME), f"park/sleep/{PART}", f"park/sleep/{PART}", [NAME]),
        (slots.woken(NAME), f"park/sleep/{PART}/woken", f"park/sleep/{PART}", [NAME]),
        (slots.wait(NAME, "1/2"), f"park/wait/{PART}/1%2F2", f"park/wait/{PART}/1%2F2", [NAME, "1/2"]),
        (slots.event(NAME, "1/2"), f"event/{PART}/1%2F2", f"event/{PART}", [NAME, "1/2"]),
        (slots.STARTED, "run/started", "run/started", []),
        (slots.FINISHED, "run/finished", "run/finished", []),
        (slots.TOMBSTONE, "run/tombstone", "run/tombstone", []),
        (slots.claim(2), "run/claim/2", "run/claim", []),
        (slots.claim_released(2), "run/claim/2/released", "run/claim", []),
        (slots.quarantine(2), "run/quarantine/2", "run/quarantine", []),
        (slots.lifted(2), "run/quarantine/2/lifted", "run/quarantine", []),
        (slots.BIRTH, "birth", "birth", []),
        (slots.accepted_restore(2), "accepted-restore/2", "accepted-restore/2", []),
    ],
)
def test_a_slot_is_what_it_always_was(slot: str, text: str, head: str, names: list[str]) -> None:
    assert slot == text
    assert slots.head(slot) == head
    assert slots.names_in(slot) == names


@pytest.mark.rule("L1")
@pytest.mark.parametrize("name", ["", "plain", "/", "%", "%2F", "%25", "a/b", "a%b", "a/b%", "%2525"])
def test_a_name_comes_out_of_a_slot_as_it_went_in(name: str) -> None:
    assert slots.unescape(slots.escape(name)) == name
    assert "/" not in slots.escape(name)


def test_the_heads_of_effects_and_transactions() -> None:
    assert slots.effect_head(NAME) == f"effect/{PART}"
    assert slots.transaction_head(NAME) == f"transaction/{PART}"


@pytest.mark.parametrize(
    ("slot", "parts"),
    [
        (slots.intent(NAME, 2), (NAME, 2, "intent")),
        (slots.outcome(NAME, 3), (NAME, 3, "outcome")),
        (slots.note(NAME, 4), (NAME, 4, "note")),
        (slots.step_failed(NAME, 2), None),
        (slots.wait("a", "b"), None),
        (slots.sleep("a"), None),
        ("effect/a/2", None),
        ("effect/a/2/intent/x", None),
    ],
)
def test_a_slot_of_an_effect_comes_apart(slot: str, parts: tuple[str, int, str] | None) -> None:
    assert slots.effect_of(slot) == parts

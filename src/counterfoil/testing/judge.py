"""The judge of a trial: it compares what the handlers did with what the ledger says, and names what breaks."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import Any, Final

from counterfoil.outcomes import Accepted, Failed, Rejected, Uncertain
from counterfoil.protocol import states
from counterfoil.protocol.checker import Checker, Item
from counterfoil.runtime.views import EffectView
from counterfoil.testing.notes import EffectSettings, Looked, plain, whole
from counterfoil.testing.recipients.faulty import WIRE
from counterfoil.testing.trials import Trial

_UNCERTAIN: Final = "after a crash it would be uncertain, and a person would have to look"


def judge(trial: Trial) -> None:
    """Note every mistake that a trial shows."""
    notes = trial.notes
    if notes.mistakes:
        return
    if trial.plan.kind == "clean":
        _judge_runs(trial)
    for view in trial.views:
        _judge_effect(trial, view)
    _judge_sends(trial)
    if not notes.mistakes:
        _judge_end(trial)
    if not notes.mistakes:
        _judge_replay(trial)
    if not notes.mistakes:
        _judge_history(trial)


# --- effects -------------------------------------------------------------------------------------------------


def _judge_effect(trial: Trial, view: EffectView) -> None:
    made = trial.notes.made(view.name)
    looked = trial.notes.looked.get(view.effect_key, [])
    if view.state == states.ACCEPTED:
        _judge_accepted(trial, view, made)
    elif view.state == states.UNCERTAIN and _never_sent(trial, view):
        _rule(trial, "E2", view.name, text="it is uncertain, and its living owner knows that it never sent it")
    elif view.state == states.UNCERTAIN and not _never_asked(trial, view):
        _judge_uncertain(trial, view, trial.notes.made(view.name, late=False), looked=looked)
    elif view.state in (states.FAILED, states.REJECTED):
        _judge_failed(trial, view, made or _items(trial, view.effect_key), looked=looked)
    elif view.state == "unresolved":
        _judge_unresolved(trial, view, looked)


def _judge_runs(trial: Trial) -> None:
    """A run that fails where nothing goes wrong would hide behind the faults that are planned for it later."""
    for key, performed in trial.notes.performed.items():
        for error in (each.error for each in performed):
            if isinstance(error, Exception) and not isinstance(error, (Failed, Rejected)):
                name = trial.notes.name_of(key)
                trial.notes.mistake(
                    "run-raises",
                    name,
                    f"your run for {name!r} raised {type(error).__name__} when nothing goes wrong: {whole(error)}",
                    hint="raise Rejected or Failed where the recipient has said no; mend it otherwise",
                )


def _never_sent(trial: Trial, view: EffectView) -> bool:
    """Whether one process lived through the trial, and did not call the run of an effect that is uncertain."""
    plan = trial.plan
    alone = not plan.crashes and not plan.cancels and plan.second is None
    return alone and not trial.notes.performed.get(view.effect_key)


def _never_asked(trial: Trial, view: EffectView) -> bool:
    return not trial.notes.settings.get(view.name, EffectSettings()).askable


def _judge_accepted(trial: Trial, view: EffectView, made: list[bytes]) -> None:
    outcome = view.outcome
    if not isinstance(outcome, Accepted) or outcome.via != "reconcile":
        return
    proof = plain(outcome.proof)
    if proof is None or proof in made:
        return
    name, found = view.name, whole(proof)
    raised = [p for p in trial.notes.performed.get(view.effect_key, ()) if p.error is not None]
    owner = trial.case.proofs.get(proof)
    somebody = owner is not None and owner != view.effect_key
    if proof in _items(trial, view.effect_key) or (raised and not somebody and not trial.plan.replies):
        return
    if somebody or not made:
        why = "made for another key" if somebody else "and nothing had been sent under this key"
        trial.notes.mistake(
            "foreign",
            name,
            f"your reconcile for {name!r} returned {found}, which is somebody else's item: {why}",
            hint="search by ctx.key, and give verify= to check that a proof carries it",
        )
        return
    trial.notes.mistake(
        "named-differently",
        name,
        f"your reconcile for {name!r} returned {found}, and your run had returned {whole(made[0])} for the same key",
        hint="both must return the same name for one effect, without times or states in it",
    )


def _judge_uncertain(trial: Trial, view: EffectView, made: list[bytes], *, looked: list[Looked]) -> None:
    if not made:
        return
    name = view.name
    found = [each.found for each in looked if each.found is not None]
    own = [proof for proof in found if proof in made]
    settings = trial.notes.settings.get(name, EffectSettings())
    if own:
        trial.notes.mistake(
            "verify-refuses",
            name,
            f"your verify for {name!r} refused {whole(own[0])}, which your reconcile found and your run had made: "
            f"{_UNCERTAIN}",
            hint="verify must hold for every proof of this effect, also when it comes from reconcile",
        )
    elif found:
        trial.notes.mistake(
            "foreign",
            name,
            f"your reconcile for {name!r} returned {whole(found[0])}, which is somebody else's item (your verify "
            f"refused it), and not {whole(made[0])}, which your run had made: {_UNCERTAIN}",
            hint="search by ctx.key",
        )
    elif not looked or not view.outcome or view.outcome.evidence.kind != "not-found":
        return
    elif all(each.hidden for each in looked) or trial.found_later.get(name) in made:
        trial.notes.mistake(
            "visibility-too-short",
            name,
            f"your visibility for {name!r} ({settings.visibility_s:g} s) is shorter than the recipient's lag: "
            f"your reconcile found nothing, and finds {whole(made[0])} later: {_UNCERTAIN}",
            hint="give visibility= the longest time that the recipient may take to show it, in seconds",
        )
    else:
        trial.notes.mistake(
            "not-found",
            name,
            f"your reconcile for {name!r} did not find {whole(made[0])}, which your run had made: {_UNCERTAIN}",
            hint="give ctx.key to the recipient in run, and search for it in reconcile",
        )


def _items(trial: Trial, key: str) -> list[bytes]:
    found = [plain(made.item) for r in trial.recipients for made in r.items if made.key == key]
    return [item for item in found if item is not None]


def _judge_failed(trial: Trial, view: EffectView, made: list[bytes], *, looked: list[Looked]) -> None:
    if not made:
        return
    name, state = view.name, view.state.capitalize()
    raised = [each.error for each in trial.notes.performed.get(view.effect_key, ())]
    if any(isinstance(each.error, (Failed, Rejected)) for each in looked):
        trial.notes.mistake(
            "failed-but-made",
            name,
            f"your reconcile for {name!r} raised {state}, and it happened all the same ({whole(made[0])}): "
            "not found is no proof",
            hint="return None where nothing is found; raise Failed only where the key is closed there for good",
        )

    elif any(isinstance(error, (Failed, Rejected)) for error in raised):
        trial.notes.mistake(
            "failed-but-made",
            name,
            f"your run for {name!r} raised {state}, and it had happened ({whole(made[0])}): an error proves nothing",
            hint="let the error pass; raise Failed only for an answer of the recipient that says so",
        )
    else:
        _rule(trial, "O2", name, text=f"it is {view.state}, and your run had made {whole(made[0])}")


def _rule(trial: Trial, rule: str, name: str, *, text: str) -> None:
    trial.notes.mistake(
        f"rule-{rule}",
        name,
        f"rule {rule} of the library does not hold for {name!r}: {text}",
        hint="this is not your mistake: please report it",
    )


def _judge_unresolved(trial: Trial, view: EffectView, looked: list[Looked]) -> None:
    name = view.name
    raised = next((each.error for each in reversed(looked) if each.error is not None), None)
    if raised is not None and sum(each.error is not None for each in looked) > 1:
        trial.notes.mistake(
            "reconcile-raises",
            name,
            f"your reconcile for {name!r} raises {whole(raised)} each time: after a crash it could never be settled",
            hint="return None where the recipient shows nothing",
        )


# --- what reached the recipients -----------------------------------------------------------------------------


def _judge_sends(trial: Trial) -> None:
    for key, performed in trial.notes.performed.items():
        if len(performed) > 1:
            _rule(
                trial,
                "E1",
                trial.notes.name_of(key),
                text=f"your run was called {len(performed)} times for one attempt",
            )
    by_key = Counter(each.key for each in trial.arrived() if each.key)
    for key, count in by_key.items():
        performed = trial.notes.performed.get(key, [])
        doubled = "doubled" in trial.plan.replies.values()
        if key in trial.notes.names and count > len(performed) + doubled:
            _twice(trial, key, count, calls=len(performed))
    for each in trial.arrived():
        if each.during == "reconcile":
            trial.notes.mistake(
                "reconcile-sends",
                each.place[1],
                f"your reconcile for {each.place[1]!r} sends: a request reached the recipient while it was only asked",
                hint="a look-up must change nothing",
            )
    _judge_outside(trial)


def _twice(trial: Trial, key: str, count: int, *, calls: int) -> None:
    name = trial.notes.name_of(key)
    places = {(each.place, each.during) for each in trial.arrived() if each.key == key}
    outside = sorted(f"{kind} {of!r}" for (kind, of), _ in places if kind == "step")
    if any(during == "reconcile" for _, during in places):
        return
    if outside or any(place == ("", "") for place, _ in places):
        where = f"{outside[0]} sends it too" if outside else "your body sends it outside of the effect too"
        trial.notes.mistake("sent-outside", name, f"{name!r} reached the recipient {count} times: {where}")
        return
    trial.notes.mistake(
        "sent-twice",
        name,
        f"your run for {name!r} reached the recipient {count} times in {calls} call{'' if calls == 1 else 's'}: "
        "it repeats by itself",
        hint="send once, without retries in run or in the client below it",
    )


def outside_sends(trial: Trial) -> dict[tuple[str, str], int]:
    """Count what reached the recipients from outside of effects, by where it was sent from."""
    counted: Counter[tuple[str, str]] = Counter()
    for each in trial.arrived():
        if each.place == WIRE and each.key in trial.notes.names:
            continue
        if each.place[0] != "effect":
            counted[each.place if each.place[0] == "step" else ("body", "")] += 1
    for (kind, name), count in trial.notes.sights.items():
        counted[("body", "") if kind == "body" else (kind, name)] += count
    return dict(counted)


def _judge_outside(trial: Trial) -> None:
    usual = trial.case.usual
    if usual is None:
        return
    for (kind, name), count in outside_sends(trial).items():
        before = usual.sights.get((kind, name), 0)
        if kind in ("step", "body"):
            _judge_place(trial, kind, name, count=count, before=before)
        elif kind == "reconcile":
            trial.notes.mistake(
                "reconcile-sends",
                name,
                f"your reconcile for {name!r} sends: something reached the recipient while it was only asked",
                hint="a look-up must change nothing",
            )
        elif kind == "run":
            calls = sum(len(p) for key, p in trial.notes.performed.items() if trial.notes.name_of(key) == name)
            doubled = "doubled" in trial.plan.replies.values()
            if before and count > before * (calls + doubled):
                trial.notes.mistake(
                    "sent-twice",
                    name,
                    f"your run for {name!r} reached the recipient {count} times in {calls} calls: it repeats by itself",
                    hint="send once, without retries in run or in the client below it",
                )


def _judge_place(trial: Trial, kind: str, name: str, *, count: int, before: int) -> None:
    if count <= before:
        return
    where = f"your step {name!r}" if kind == "step" else "your body, outside of every step and effect,"
    why = "a step may run again after a crash" if kind == "step" else "a body runs again after a crash"
    trial.notes.mistake(
        "sent-in-step" if kind == "step" else "sent-in-body",
        name,
        f"{where} sends: the recipient got {count} requests from there instead of {before}: {why}",
        hint="make it an effect, with run= and reconcile=",
    )


# --- the end of the body -------------------------------------------------------------------------------------


def _judge_end(trial: Trial) -> None:
    ended, notes = trial.ended, trial.notes
    settled = all(view.state == states.ACCEPTED for view in trial.views)
    disturbed = trial.plan.disturbs
    if ended.how == "endless":
        notes.mistake(
            "endless",
            "",
            "your body does not come to its end: it asks again and again",
            hint="end loops by what is recorded",
        )
    elif ended.how == "waits" and not (disturbed and not settled):
        _waits(trial)
    elif isinstance(ended.error, AttributeError) and isinstance(ended.error.obj, (Uncertain, Failed, Rejected)):
        kind = type(ended.error.obj).__name__
        notes.mistake(
            "outcome-ignored",
            "",
            f"your body takes every outcome for Accepted: it raises {whole(ended.error)} where one is {kind}",
            hint="match on Accepted, Rejected, Failed and Uncertain",
        )
    elif ended.how == "raised" and ended.error is not None and (settled or not disturbed):
        error = ended.error
        when = "again and again, also with nothing wrong any more" if disturbed else "when nothing goes wrong"
        notes.mistake("raises", "", f"your body raises {whole(error)} {when}")


def _waits(trial: Trial) -> None:
    asked = trial.sequences[-1]
    open_ended = [pair for pair in asked.pairs if pair not in asked.returned]
    parks = [name for kind, name in open_ended if kind == "wait_for"]
    if parks:
        event, event_id = trial.notes.awaited[parks[-1]]
        trial.notes.mistake(
            "waits",
            parks[-1],
            f"your body waits for {event!r} {event_id!r}, and nobody brings it",
            hint=f'say what is delivered: deliver=[("{event}", "{event_id}", payload)]',
            command_hint=f"say what is delivered: --deliver {shlex.join([event, event_id])} JSON",
        )
        return
    kind, name = (open_ended or [("", "")])[-1]
    trial.notes.mistake("waits", name, f"your body waits in {kind} {name!r}, and nothing comes")


def _judge_replay(trial: Trial) -> None:
    replayed, notes = trial.replayed, trial.notes
    if replayed is None:
        return
    last, first = trial.sequences[-1], trial.sequences[-2]
    new = next((pair for pair in last.pairs if pair not in first.pairs), None)
    if new is not None:
        trial.not_deterministic(new, None)
    elif replayed.how == "raised":
        error = replayed.error
        notes.mistake("raises", "", f"your body raises {whole(error)} when it is replayed")
    elif replayed.how == "returned" and not _equal(replayed.value, trial.ended.value):
        notes.mistake(
            "result-changes",
            "",
            f"your body is not deterministic: a replay returned {whole(replayed.value)}, "
            f"and it had returned {whole(trial.ended.value)}",
            hint="take what differs from a step",
        )


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if not any("__eq__" in vars(each) for each in type(one).__mro__[:-1]):
        # Objects that are equal to themselves only say nothing.
        return True
    return bool(one == other)


def _judge_history(trial: Trial) -> None:
    items = [Item(key, item.item) for r in trial.recipients for item in r.items if (key := item.key) in trial.keys]
    if "doubled" in trial.plan.replies.values() or not items:
        items = []
    checker = Checker(trial.case.namespace, items or None)
    for finding in checker.run(trial.run_id, trial.records):
        if finding.code != "phantom" or trial.recipients:
            _rule(trial, finding.rule, finding.name, text=finding.text)

"""A door that cannot be asked: a lost reply is uncertain at once, and a person decides.

It prints:

    uncertain: unaskable
    opened 1 time
    ada: the camera shows it closed; send again as open-again
    opened again: ok
    opened 2 times
"""

from counterfoil import UNASKABLE, EffectUnresolved, Recipient, Runtime

opened = []
house = Recipient("house")


@house.operation(reconcile=UNASKABLE)
def open_door(door: str) -> str:
    opened.append(door)
    if len(opened) == 1:
        raise TimeoutError("the relay did not answer")
    return "ok"


def times() -> str:
    return f"opened {len(opened)} time{'s' if len(opened) != 1 else ''}"


def main() -> None:
    with Runtime("memory:") as runtime, runtime.run("visit-7") as visit:
        try:
            visit.effect("open", open_door("front"))
        except EffectUnresolved:
            outcome = visit.effect("open", open_door("front"))
            print("uncertain:", outcome.evidence.kind)
        print(times())

        # Somebody looks at the list, then at the camera.
        (seen,) = runtime.effects(state="uncertain")
        runtime.decide(
            seen.run_id,
            seen.name,
            did_not_happen=True,
            reason="the camera shows it closed",
            by="ada",
            expect_version=seen.version,
            new_name="open-again",
        )

        # The body follows the decision, and takes the same branch in every replay.
        decision = visit.decision("open")
        print(f"{decision.by}: {decision.reason}; send again as {decision.new_name}")
        print("opened again:", visit.effect(decision.new_name, open_door("front")).proof)
        print(times())


if __name__ == "__main__":
    main()

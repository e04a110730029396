"""A refund that waits for a person, across a restart of its process.

It prints:

    asked for approval of 4200 cents
    the process ends here; nothing is lost
    delivered: True, and again: False
    recovered: {'refund-7': 'refunded as re_1 (approved by ada)'}
"""

import tempfile

from counterfoil import UNASKABLE, Runtime

made: list[int] = []


def pay_back(cents: int) -> str:
    made.append(cents)
    return f"re_{len(made)}"


def refund(run, cents: int) -> str:
    run.step("ask", lambda: print(f"asked for approval of {cents} cents"))
    answer = run.wait_for("approval", "refund-7", timeout=0.2)
    if not answer["approved"]:
        return f"refused by {answer['by']}"
    outcome = run.effect("refund", run=lambda: pay_back(cents), reconcile=UNASKABLE, request={"cents": cents})
    return f"refunded as {outcome.proof} (approved by {answer['by']})"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/shop.db"

        with Runtime(url, owner="worker") as runtime:
            try:
                runtime.execute("refund-7", refund, 4200)
            except TimeoutError:
                print("the process ends here; nothing is lost")

        with Runtime(url, owner="ada's console") as runtime:
            answer = {"approved": True, "by": "ada"}
            first = runtime.deliver("refund-7", "approval", "refund-7", answer)
            again = runtime.deliver("refund-7", "approval", "refund-7", answer)
            print(f"delivered: {first}, and again: {again}")

        with Runtime(url, owner="worker") as runtime:
            print("recovered:", runtime.recover([refund]))


if __name__ == "__main__":
    main()

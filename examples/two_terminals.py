"""Two processes want one effect at the same moment: one sends, the other waits for its outcome.

It prints:

    impatient: in-flight, sent: unknown
    patient: message-1
    winner: message-1
    sent 1 time
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from counterfoil import EffectUnresolved, Runtime

SCRIPT = Path(__file__).resolve()
LOG, GO = Path("log"), Path("go")


def wait_until(ready: Callable[[], bool]) -> None:
    while not ready():
        time.sleep(0.01)


def send() -> str:
    with LOG.open("a") as log:
        log.write("sent\n")
    wait_until(GO.exists)  # stands for a slow recipient
    return "message-1"


def worker(name: str, wait_s: float) -> None:
    with Runtime("sqlite:///shop.db", owner=name) as runtime, runtime.run("order-42") as order:
        try:
            outcome = order.effect("mail", run=send, reconcile=lambda: None, wait=wait_s)
            print(f"{name}: {outcome.proof}")
        except EffectUnresolved as error:
            print(f"{name}: {error.reason}, sent: {error.effect_ran}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:

        def start(name: str, wait_s: float) -> "subprocess.Popen[str]":
            command = [sys.executable, SCRIPT, name, str(wait_s)]
            return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)

        winner = start("winner", 30)
        wait_until((Path(folder) / LOG).exists)
        print(start("impatient", 0.1).communicate()[0], end="")
        patient = start("patient", 30)
        (Path(folder) / GO).touch()
        for process in (patient, winner):
            print(process.communicate()[0], end="")
        count = len((Path(folder) / LOG).read_text().splitlines())
        print(f"sent {count} time{'s' if count != 1 else ''}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(sys.argv[1], float(sys.argv[2]))
    else:
        main()

"""A mail that is sent once, although the worker is killed right after sending it.

The mail server is a folder here. Each mail carries the effect's key as its Message-ID, so that it can be found.

It prints:

    first worker: killed
    second worker: <cf-...@example.com>, known from reconcile
    mails in the box: 1
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from counterfoil import Recipient, Runtime

SCRIPT = Path(__file__).resolve()
BOX = Path("box")
mail = Recipient("mail")


@mail.operation
def send(ctx, to: str, subject: str) -> str:
    message_id = f"<{ctx.key}@example.com>"
    (BOX / f"{ctx.key}.eml").write_text(f"Message-ID: {message_id}\nTo: {to}\nSubject: {subject}\n")
    if "--die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return message_id


@send.reconcile
def find(ctx, to: str, subject: str) -> str | None:
    found = BOX / f"{ctx.key}.eml"
    return found.read_text().splitlines()[0].removeprefix("Message-ID: ") if found.exists() else None


def worker() -> None:
    with Runtime("sqlite:///shop.db") as runtime, runtime.run("order-42") as order:
        outcome = order.effect("receipt", send(to="ada@example.com", subject="Thank you"))
        print(f"second worker: {outcome.proof}, known from {outcome.via}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        BOX.mkdir()
        first = subprocess.run([sys.executable, SCRIPT, "worker", "--die"], check=False)
        print("first worker:", "killed" if first.returncode == -signal.SIGKILL else first.returncode, flush=True)
        subprocess.run([sys.executable, SCRIPT, "worker"], check=True)
        print("mails in the box:", len(list(BOX.iterdir())))
        os.chdir("/")


if __name__ == "__main__":
    if "worker" in sys.argv:
        worker()
    else:
        main()

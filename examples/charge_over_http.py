"""A charge over HTTP whose answer is lost: the payee is asked by the key, and charged once.

Both sides are standard library. The payee makes the charge and then closes the connection without a word.

It prints:

    first call: run-failed, sent: unknown
    second call: ch_1, known from reconcile
    an invalid one: Failed, status 422
    POST requests at the payee: 2
"""

import json
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from counterfoil import EffectUnresolved, Evidence, Failed, Recipient, Rejected, Runtime

charges: dict[str, str] = {}
posts: list[str] = []


class Payee(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        key = self.headers["Idempotency-Key"]
        posts.append(key)
        amount = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["cents"]
        if amount <= 0:
            self.answer(422, {"error": "no amount"})
            return
        charges[key] = f"ch_{len(charges) + 1}"
        self.close_connection = True  # the charge is made, and the answer is never sent

    def do_GET(self) -> None:
        found = charges.get(self.path.removeprefix("/charges/"))
        self.answer(404 if found is None else 200, {"id": found})

    def answer(self, status: int, body: dict[str, str | None]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Payee)
payee = Recipient("payee")


@payee.operation
def charge(ctx, cents: int) -> str:
    connection = HTTPConnection(*server.server_address, timeout=60)
    try:
        connection.connect()
    except OSError as error:
        # Nothing was written to a connection that was never made.
        raise Rejected(Evidence("connect-failed", phase="not-dispatched", bytes_offered=0)) from error
    connection.request("POST", "/charges", json.dumps({"cents": cents}), {"Idempotency-Key": ctx.key})
    answer = connection.getresponse()
    if answer.status == 422:
        # This payee's contract: 422 means that no charge was made.
        raise Failed(Evidence("status", phase="acknowledged", status=422))
    if answer.status != 201:
        raise RuntimeError(f"status {answer.status} proves nothing")
    return json.load(answer)["id"]


@charge.reconcile
def find(ctx, cents: int) -> str | None:
    connection = HTTPConnection(*server.server_address, timeout=60)
    connection.request("GET", f"/charges/{ctx.key}")
    answer = connection.getresponse()
    if answer.status == 404:
        return None
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: could not ask")
    return json.load(answer)["id"]


def main() -> None:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Runtime("memory:") as runtime, runtime.run("order-42") as order:
        try:
            order.effect("charge", charge(cents=4200))
        except EffectUnresolved as error:
            print(f"first call: {error.reason}, sent: {error.effect_ran}")
        outcome = order.effect("charge", charge(cents=4200))
        print(f"second call: {outcome.proof}, known from {outcome.via}")
        outcome = order.effect("nothing", charge(cents=0))
        print(f"an invalid one: {type(outcome).__name__}, status {outcome.evidence.status}")
    server.shutdown()
    print("POST requests at the payee:", len(posts))


if __name__ == "__main__":
    main()

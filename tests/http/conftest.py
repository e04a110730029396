"""What the tests of HTTP share: each of them runs in both colours, against peers on real sockets."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import pytest

from tests.http.support import Colour


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> Colour:
    return Colour(request.param)


@pytest.fixture
def raw_peer() -> Callable[[bytes], AbstractContextManager[str]]:
    """A peer that answers with given bytes, whatever they are."""

    @contextmanager
    def serving(answer: bytes) -> Iterator[str]:
        listener = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            with suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock:
                        sock.recv(65_536)
                        sock.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()

    return serving

"""TLS, always verified."""

from __future__ import annotations

import socket
import ssl
import threading
from typing import Any

from counterfoil.errors import UsageError


class Sessions:
    """Where TLS sessions of one recipient come from.

    Args:
        context: the caller's own, for a private authority or a client certificate; None: the system's authorities.

    Raises:
        UsageError: the context would not verify who answers.
    """

    def __init__(self, context: Any) -> None:
        if context is not None and not isinstance(context, ssl.SSLContext):
            raise UsageError(f"tls is an ssl.SSLContext, not {type(context).__name__}")
        if context is not None and (context.verify_mode != ssl.CERT_REQUIRED or not context.check_hostname):
            raise UsageError(
                "tls would not verify who answers",
                hint="add a private authority with context.load_verify_locations(…), and leave verification on",
            )
        self._context: ssl.SSLContext | None = context
        # The versions are a setting of the context that each session copies when it is made.
        self._lock = threading.Lock()

    def wrap(self, sock: socket.socket, host: str, versions: list[str]) -> ssl.SSLSocket:
        """Put a session on a connected socket, before its handshake.

        Args:
            sock: the socket, which belongs to the session from here on.
            host: who must answer.
            versions: of the protocol, that are offered.
        """
        with self._lock:
            if self._context is None:
                self._context = ssl.create_default_context()
            self._context.set_alpn_protocols(versions)
            # A session for a connection that is gone already would lose track of its socket.
            sock.getpeername()
            return self._context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)

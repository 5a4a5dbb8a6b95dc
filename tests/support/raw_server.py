"""A server on blocking sockets and threads, for what a well-behaved server does not do."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

PATIENCE_S = 20.0
"""Seconds after which a server gives a test up."""


class RawConnection:
    """One accepted connection.

    Attributes:
        over: what its bytes are written to and read from: TLS, if the server has it.
        under: the TCP connection below.
    """

    def __init__(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        accepted.settimeout(PATIENCE_S)
        self.over = accepted if tls is None else tls.wrap_socket(accepted, server_side=True)
        self.under = socket.socket(fileno=os.dup(self.over.fileno()))
        self.under.settimeout(PATIENCE_S)

    def head(self) -> bytes:
        """Read up to the end of a request's head, and nothing of its body."""
        found = b""
        while not found.endswith(b"\r\n\r\n"):
            piece = self.over.recv(1)
            if not piece:
                raise ConnectionError
            found += piece
        return found

    def body(self, head: bytes) -> bytes:
        """Read the body of a request."""
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found = bytearray()
        while len(found) < size:
            piece = self.over.recv(size - len(found))
            if not piece:
                raise ConnectionError
            found += piece
        return bytes(found)

    def wait_for_end(self) -> None:
        """Read without TLS until the client has closed the TCP connection."""
        with contextlib.suppress(ConnectionError):
            while self.under.recv(1 << 16):
                pass

    def close(self) -> None:
        self.over.close()
        self.under.close()


class RawServer:
    """Serves each connection in a thread.

    Args:
        serve: handles one connection, which stays open when it returns.

    Attributes:
        connections: in the order in which they came.
    """

    def __init__(self, serve: Callable[[RawConnection], None], tls: ssl.SSLContext | None = None) -> None:
        self._serve = serve
        self._tls = tls
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.connections: list[RawConnection] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[RawServer]:
        """Serve for the length of a block."""
        accepting = threading.Thread(target=self._accept)
        accepting.start()
        try:
            yield self
        finally:
            self._listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
            self._listening.close()
            for connection in self.connections:
                connection.close()

    def _accept(self) -> None:
        serving: list[threading.Thread] = []
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                break
            serving.append(threading.Thread(target=self._serve_one, args=(accepted,)))
            serving[-1].start()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.under.shutdown(socket.SHUT_RDWR)
        for thread in serving:
            thread.join()

    def _serve_one(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection = RawConnection(accepted, self._tls)
            self.connections.append(connection)
            self._serve(connection)

"""kazoo's client, extended with reports that EMQ needs: a usable session, a server's failure, the time of silence.

kazoo runs threads of its own. The code here runs in these threads, unless its docstring says otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, SessionExpiredError, ZookeeperError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState

SILENCE = 2 / 3
"""Share of the session's time-out after which a silent connection is given up."""

_SHORTEST_CONNECT_S = 1.0


@dataclasses.dataclass(frozen=True)
class Access:
    """Our identity for the ensemble, and the rights of others on our nodes.

    Attributes:
        own_acl: access list of the chroot and of each node below it.
        shared_acl: access list of nodes above the chroot.
        digest: kazoo's `auth_data`.
        sasl: kazoo's `sasl_options`.
        tls: None for plain connections.
    """

    own_acl: list[Any]
    shared_acl: list[Any]
    digest: list[tuple[str, str]] = dataclasses.field(default_factory=list, repr=False)
    sasl: dict[str, str] | None = dataclasses.field(default=None, repr=False)
    tls: ssl.SSLContext | None = None


class Failure(NamedTuple):
    """The reason for which a server could not be used.

    Attributes:
        refused: "" if the server may work later; else the setting to correct: "credentials" or "certificate".
    """

    reason: str
    refused: str


class Listener(Protocol):
    """Receives reports from kazoo's connection thread, in order; its methods must not block."""

    def connected(self, session: int, timeout_s: float) -> None:
        """A server answers, and has accepted our identity."""

    def disconnected(self) -> None:
        """The connection broke; kazoo looks for another."""

    def expired(self) -> None:
        """The servers ended the session; kazoo begins another."""

    def ended(self) -> None:
        """kazoo gave up for good, after `close` or after an error of its own."""

    def failed(self, server: str, failure: Failure) -> None:
        """A server could not be used; kazoo goes on with the next."""


class Client:
    """One kazoo client, from `start` to `stop`.

    Attributes:
        kazoo: the client itself; only methods whose name ends with `_async` do not block.
    """

    def __init__(self, servers: tuple[str, ...], access: Access, timeout_s: float, listener: Listener) -> None:
        self._handler = _Handler(access.tls)
        # The listener hears of all that matters; kazoo's log at lower levels would also show passwords.
        quiet = logging.getLogger(f"{__name__}.kazoo")
        quiet.setLevel(logging.ERROR)
        self.kazoo = KazooClient(
            hosts=list(servers),
            timeout=timeout_s,
            handler=self._handler,
            auth_data=access.digest,
            sasl_options=dict(access.sasl) if access.sasl else None,
            connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 0.5},
            logger=quiet,
        )
        _report_to(listener, self.kazoo)

    @property
    def heard_s(self) -> float:
        """Time of the last data from a server, in seconds of `time.monotonic`. Any thread may read it."""
        return self._handler.heard_s

    def start(self) -> None:
        """Begin to look for a server; do not block. Any thread may call this."""
        self.kazoo.start_async()

    def drop(self) -> None:
        """Break the connection, so that kazoo looks for another. Any thread may call this."""
        self._handler.drop()

    def stop(self) -> None:
        """End the session and the threads. Blocks until both have ended; call it from a thread that may block."""
        self._handler.closing = True
        self.kazoo.stop()
        self.kazoo.close()


def _report_to(listener: Listener, kazoo: Any) -> None:
    def state_changed(state: str) -> None:
        if state == KazooState.SUSPENDED:
            listener.disconnected()
        elif state == KazooState.LOST:
            (listener.expired if kazoo.client_state == KeeperState.EXPIRED_SESSION else listener.ended)()

    kazoo.add_listener(state_changed)
    # kazoo reports CONNECTED before it has authenticated, and tells nobody the negotiated time-out nor its failures.
    kazoo._connection._connect = _telling(listener, kazoo, kazoo._connection._connect)


def _telling(listener: Listener, kazoo: Any, connect: Callable[..., tuple[float, float]]) -> Callable[..., Any]:
    def connect_and_tell(host: str, address: str, port: int) -> tuple[float, float]:
        try:
            read_timeout_ms, connect_timeout_ms = connect(host, address, port)
        except SessionExpiredError:
            raise
        except Exception as exc:
            name = f"[{host}]" if ":" in host else host
            listener.failed(f"{name}:{port}", _failure(exc))
            # kazoo ends its thread at an unknown error; this error makes it try again.
            raise ConnectionDropped(str(exc)) from exc
        listener.connected(kazoo._session_id, read_timeout_ms / 1000 / SILENCE)
        return read_timeout_ms, connect_timeout_ms

    return connect_and_tell


def _failure(exc: BaseException) -> Failure:
    root = exc
    while cause := root.__cause__ or root.__context__:
        root = cause
    text = str(root) or type(root).__name__
    if isinstance(exc, KazooTimeoutError) or isinstance(root, TimeoutError):
        return Failure("no answer in time", "")
    if isinstance(root, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return Failure("it broke the TLS handshake off; does it speak TLS there?", "")
    if isinstance(root, ssl.SSLError):
        return Failure(text, "certificate")
    # A server that only breaks the connection may be stopping.
    if isinstance(exc, ZookeeperError) and not isinstance(exc.__cause__, ConnectionDropped):
        return Failure(f"it refused user and password ({type(exc).__name__})", "credentials")
    return Failure(text, "")


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Makes kazoo's connections and waits for data on them.

    Attributes:
        heard_s: time of the last data, in seconds of `time.monotonic`.
        closing: whether to refuse new connections.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self.heard_s = time.monotonic()
        self.closing = False
        self._tls = tls
        self._socket: socket.socket | None = None

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: object) -> socket.socket:
        if self.closing:
            raise ConnectionAbortedError("closing")
        # One dead server must not use up the time in which another could keep the session.
        connection = socket.create_connection(address, max(timeout / 3, _SHORTEST_CONNECT_S))
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=hostname)
        except BaseException:
            connection.close()
            raise
        self._socket = connection
        return connection

    def select(self, readers: list[Any], writers: list[Any], others: list[Any], timeout: float) -> Any:
        # Data that TLS has decrypted already makes no socket readable.
        decrypted = [reader for reader in readers if isinstance(reader, ssl.SSLSocket) and reader.pending()]
        ready = (decrypted, [], []) if decrypted else super().select(readers, writers, others, timeout)
        if self._socket in ready[0]:
            self.heard_s = time.monotonic()
        return ready

    def drop(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Bypass the TLS socket's own method, which would destroy state that the connection thread uses.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

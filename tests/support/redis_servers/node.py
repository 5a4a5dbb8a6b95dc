"""One Redis server of a cluster or of sentinels; plain commands tell these servers how to work together."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from emq_servers.redis import RedisServer
from emq_servers.server import LOOPBACK, START_TIMEOUT_S, ServerFailed

_ANSWER_TIMEOUT_S = 10.0
_PAUSE_S = 0.02


class Refused(ServerFailed):
    """A node replied to a command with an error; the text is the node's."""


class RedisNode(RedisServer):
    """One server of several; `url` is the address of this server alone."""

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def ask(self, *words: object) -> Any:
        """Send one command and return the reply: text, bytes that are not UTF-8, a number, None or a list of these.

        Raises:
            Refused: the node replied with an error.
            OSError: the node does not reply.
        """
        with socket.create_connection((LOOPBACK, self.port), _ANSWER_TIMEOUT_S) as connection:
            parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
            connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
            with connection.makefile("rb") as stream:
                return _answer(stream)

    def restart_with(self, *options: str) -> None:
        """Start the server again, this time with more options; of two values of an option, the later one counts."""
        always, self._options = self._options, (*self._options, *options)
        try:
            self.restart()
        finally:
            self._options = always

    def has_replica(self) -> bool:
        """Return whether a replica is connected to this node and keeps up with it."""
        return "state=online" in self.ask("INFO", "replication")


def await_true(holds: Callable[[], bool], otherwise: str) -> None:
    """Wait until `holds()` returns true. An `OSError` or `ServerFailed` from `holds` counts as false.

    Raises:
        ServerFailed: `holds()` was false for `START_TIMEOUT_S` seconds; the text begins with `otherwise`.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    why: object = None
    while True:
        try:
            if holds():
                return
        except (OSError, ServerFailed) as exc:
            why = exc
        if time.monotonic() > deadline:
            raise ServerFailed(f"{otherwise} after {START_TIMEOUT_S:g} s" + (f" (last: {why})" if why else ""))
        time.sleep(_PAUSE_S)


def _answer(stream: BinaryIO) -> Any:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the node closed the connection")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise Refused(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else _text(stream.read(int(rest) + 2)[:-2])
    if kind == b"*":
        return None if rest == b"-1" else [_answer(stream) for _ in range(int(rest))]
    return _text(rest)


def _text(raw: bytes) -> str | bytes:
    """Return the decoded text, or the bytes themselves: names of keys may be any bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw

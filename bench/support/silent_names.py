"""Names whose name servers never answer: look-ups of them wait for a UDP port of this machine that keeps silent."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

WAIT_S = 5.0
TRIES = 2
"""Seconds for which the system's resolver waits for an answer, and how often it asks, unless told otherwise."""


@contextlib.contextmanager
def silent(end: str) -> Iterator[None]:
    """Have the system's look-ups of names with this end wait in vain, as `getaddrinfo` waits for a silent server."""
    real = socket.getaddrinfo
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        address = server.getsockname()

        def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(host, str) and host.endswith(end):
                _ask(address, host)
            return real(host, *args, **kwargs)

        socket.getaddrinfo = getaddrinfo
        try:
            yield
        finally:
            socket.getaddrinfo = real


def _ask(server: tuple[str, int], name: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(WAIT_S)
        for number in range(TRIES):
            asking.sendto(_query(number, name), server)
            with contextlib.suppress(TimeoutError):
                asking.recv(512)
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


def _query(number: int, name: str) -> bytes:
    """Return a query for the addresses of a name (RFC 1035, 4.1)."""
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    return number.to_bytes(2, "big") + b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + labels + b"\x00\x00\x01\x00\x01"

"""Local HTTP receivers that play the tenants of a push platform.

In the demonstration senders and receivers share a machine. So one process of its own holds all receivers, and they
speak a small part of HTTP: POST with a Content-Length body, keep-alive and pipelining, nothing else.
`Receivers` is the parent's side; `python -m emq_demo.receivers` is the process that the parent starts.

The child reads its behaviours from standard input and writes its ports to standard output. At the end of its input,
which comes also when the parent dies, the child prints its log and exits.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, cast
from urllib.parse import quote

import httptools
import msgspec
import uvloop

from emq.runtime import errors
from emq_cli import standard_output
from emq_demo.child import Child

HUNG_UP = 0
"""Status of a receipt whose caller closed the connection before the response."""

_NO_CONTENT = 204
_FAILURE = 500
_STOP_TIMEOUT_S = 30.0
_MOST_QUEUED = 100
"""A receiver stops reading from a connection with more unanswered requests than this."""


class Receipt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request that a receiver got.

    Attributes:
        tenant: name of the tenant, from the URL.
        arrived_us: time when the whole request was there, microseconds since the epoch by `time.time`.
        id: the header `webhook-id`, or "".
        attempt: the header `emq-attempt`, or 0.
        status: HTTP status of the response, or `HUNG_UP`.
    """

    tenant: str
    arrived_us: int
    id: str
    attempt: int
    status: int


class Behaviour(NamedTuple):
    """A receiver responds after `delay_s` seconds, and to every `fail_every`th call (0: never) with status 500.

    Nobody listens for a tenant that is `down`.
    """

    delay_s: float = 0.0
    fail_every: int = 0
    down: bool = False

    @classmethod
    def parse(cls, text: str) -> Behaviour:
        """Parse `fast`, `slow:<seconds>`, `flaky:<n>` (every nth call fails) or `down` (nobody listens).

        Raises:
            InvalidSettings: the text is none of these; the error names the text.
        """
        kind, _, number = text.partition(":")
        try:
            if kind == "slow" and 0 < float(number) <= 3600:
                return cls(delay_s=float(number))
            if kind == "flaky" and int(number) >= 1:
                return cls(fail_every=int(number))
        except ValueError:
            pass
        if text == "fast":
            return cls()
        if text == "down":
            return cls(down=True)
        raise errors.InvalidSettings(
            f"receiver behaviour {text!r} is not known; use fast, slow:<seconds up to 3600>, flaky:<n from 1> or down"
        )


class Receivers:
    """The parent's side of the receivers' process; a context manager.

    The methods block for a few milliseconds, `start` and `stop` longer. From an event loop, call them through
    `asyncio.to_thread`.

    Args:
        behaviours: tenant name to behaviour, see `Behaviour.parse`.

    Raises:
        InvalidSettings: a behaviour is not known.
    """

    def __init__(self, behaviours: Mapping[str, str]) -> None:
        self._behaviours = dict(behaviours)
        self._parsed = {tenant: Behaviour.parse(text) for tenant, text in behaviours.items()}
        self._child: Child | None = None
        self._ports = _Ports(0, 0)

    def start(self) -> Receivers:
        """Start the process and wait until it listens. Raise `RuntimeError` if the process ends before."""
        self._child = Child("emq_demo.receivers", msgspec.json.encode(self._behaviours), own_session=True)
        self._ports = msgspec.json.decode(self._child.ready, type=_Ports)
        return self

    def url(self, tenant: str) -> str:
        """Return the URL for a tenant's messages. Raise `KeyError` for a tenant without a behaviour."""
        port = self._ports.closed if self._parsed[tenant].down else self._ports.open
        return f"http://127.0.0.1:{port}{_path(tenant)}"

    def stop(self) -> list[Receipt]:
        """End the process and return all receipts, by arrival; empty if no process runs. Safe to repeat."""
        child, self._child = self._child, None
        return [] if child is None else _decode(child.end(_STOP_TIMEOUT_S))

    def __enter__(self) -> Receivers:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


class _Ports(msgspec.Struct, frozen=True):
    open: int
    closed: int


def _path(tenant: str) -> str:
    return "/t/" + quote(tenant, safe="")


def _decode(log: bytes) -> list[Receipt]:
    receipts = msgspec.json.Decoder(Receipt).decode_lines(log)
    receipts.sort(key=operator.attrgetter("arrived_us"))
    return receipts


# ---------------------------------------------------------------------------------------------- the receivers' process


class _Tenant:
    """One tenant's behaviour, with a count of its calls."""

    def __init__(self, name: str, behaviour: Behaviour) -> None:
        self.name = name
        self.delay_s = behaviour.delay_s
        self._fail_every = behaviour.fail_every
        self._calls = itertools.count(1)

    def next_status(self) -> int:
        if self._fail_every and next(self._calls) % self._fail_every == 0:
            return _FAILURE
        return _NO_CONTENT


class _Log:
    """Receipts as JSON lines in one byte array: ready to send, and in a tenth of the memory that objects would take."""

    def __init__(self) -> None:
        self.lines = bytearray()
        self._encode_into = msgspec.json.Encoder().encode_into

    def add(self, tenant: str, arrived_us: int, request: _Request, status: int) -> None:
        self._encode_into((tenant, arrived_us, request.id, request.attempt, status), self.lines, -1)
        self.lines += b"\n"


class _Request(NamedTuple):
    path: bytes
    id: str
    attempt: int


def _response(status: str) -> bytes:
    # A 204 must not carry a Content-Length (RFC 9110, 8.6).
    length = b"" if status.startswith("204") else b"Content-Length: 0\r\n"
    return b"HTTP/1.1 " + status.encode() + b"\r\n" + length + b"\r\n"


_ANSWERS = {_NO_CONTENT: _response("204 No Content"), _FAILURE: _response("500 Internal Server Error")}
_NOT_FOUND = _response("404 Not Found")
_BAD_REQUEST = _response("400 Bad Request")


class _Connection(asyncio.Protocol):
    """One connection. It responds to requests in their order, so a request that waits holds up those behind it."""

    def __init__(self, tenants: Mapping[bytes, _Tenant], log: _Log) -> None:
        self._tenants = tenants
        self._log = log
        self._parser = httptools.HttpRequestParser(self)
        self._requests: deque[_Request | None] = deque()  # None for one that is not understood
        self._waiting: tuple[asyncio.TimerHandle, str, int, _Request] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting:
            timer, tenant, arrived_us, request = self._waiting
            timer.cancel()
            self._waiting = None
            self._log.add(tenant, arrived_us, request, HUNG_UP)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._requests.append(None)
        if not self._waiting:
            self._serve()
        elif len(self._requests) > _MOST_QUEUED:
            self._transport.pause_reading()

    def on_message_begin(self) -> None:
        self._path, self._id, self._attempt = b"", "", 0

    def on_url(self, part: bytes) -> None:
        self._path += part

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"webhook-id":
                self._id = value.decode("latin-1")
            case b"emq-attempt":
                self._attempt = int(value or 0)
            case b"transfer-encoding":
                raise ValueError("chunked bodies are not supported")

    def on_message_complete(self) -> None:
        self._requests.append(_Request(self._path, self._id, self._attempt))

    def _serve(self) -> None:
        """Respond to the requests that are there, up to the first that has to wait."""
        while self._requests and not self._waiting:
            request = self._requests.popleft()
            if request is None:
                self._transport.write(_BAD_REQUEST)
                self._transport.close()
                return
            self._answer(request)

    def _answer(self, request: _Request) -> None:
        arrived_us = time.time_ns() // 1000
        tenant = self._tenants.get(request.path)
        if tenant is None:
            self._transport.write(_NOT_FOUND)
        elif tenant.delay_s:
            timer = asyncio.get_running_loop().call_later(tenant.delay_s, self._answer_late, tenant.next_status())
            self._waiting = timer, tenant.name, arrived_us, request
        else:
            status = tenant.next_status()
            self._transport.write(_ANSWERS[status])
            self._log.add(tenant.name, arrived_us, request, status)

    def _answer_late(self, status: int) -> None:
        assert self._waiting
        _, tenant, arrived_us, request = self._waiting
        self._waiting = None
        self._transport.write(_ANSWERS[status])
        self._log.add(tenant, arrived_us, request, status)
        self._transport.resume_reading()
        self._serve()


async def _serve(behaviours: Mapping[str, str]) -> bytes:
    """Listen until standard input ends; return the log."""
    tenants = {_path(name).encode(): _Tenant(name, Behaviour.parse(text)) for name, text in behaviours.items()}
    log = _Log()
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), stopped.set)
    # Bound but not listening: the kernel refuses connections to this port, and nobody else gets it meanwhile.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server = await loop.create_server(lambda: _Connection(tenants, log), "127.0.0.1", 0, backlog=4096)
        ports = _Ports(server.sockets[0].getsockname()[1], closed.getsockname()[1])
        sys.stdout.buffer.write(msgspec.json.encode(ports) + b"\n")
        sys.stdout.buffer.flush()
        await stopped.wait()
        loop.remove_reader(sys.stdin.fileno())
        server.close()
    return bytes(log.lines)


def main() -> None:
    """Entry point of the receivers' process."""
    sys.stdout = standard_output.whole(sys.stdout)
    behaviours = msgspec.json.decode(sys.stdin.buffer.readline(), type=dict[str, str])
    log = uvloop.run(_serve(behaviours))
    try:
        sys.stdout.buffer.write(log)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The parent died, and nobody wants the log. Without this line the interpreter would complain at its last flush.
        sys.stdout = None


if __name__ == "__main__":
    main()

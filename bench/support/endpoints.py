"""Endpoints of tenants for the benchmarks of push: good ones and troubled ones, in a process of their own.

Each tenant has an address of its own (127.16.0.1, 127.16.0.2, ...), as each customer has a host of his own, so that no
two tenants share connections. A name server tells the addresses of their names. `Endpoints` is the parent's side;
`python -m bench.support.endpoints` is the process.

The process reads its tenants from standard input and writes its ports to standard output. At the end of its input it
writes its log and exits.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self, cast

import msgspec
import uvloop

from emq_cli import standard_output
from emq_demo.child import Child

Kind = Literal["good", "hang", "refuse", "huge", "drip", "silent-names"]
"""What an endpoint does with a request:

- good: answers 204 after `WORK_S`.
- hang: answers after `HANG_S`, when nobody waits any more.
- refuse: nobody listens at its address.
- huge: answers 200 with a body of `HUGE_BYTES`.
- drip: answers with one byte of the head each `DRIP_S`.
- silent-names: would answer, but the name server says nothing of its name.
"""

WORK_S = 0.02
HANG_S = 30.0
HUGE_BYTES = 10 << 30
DRIP_S = 0.5
ZONE = ".bench.test"
"""End of the tenants' names, for the name server among the endpoints."""

_STOP_TIMEOUT_S = 60.0
_CHUNK = b"x" * (1 << 16)
_NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
_HUGE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % HUGE_BYTES


class Arrival(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request that an endpoint got.

    Attributes:
        tenant: name of the tenant, from the URL.
        id: the header `webhook-id`.
        stamp_s: the header `webhook-timestamp`: the host's time at the start of the attempt, in whole seconds.
        arrived_us: time when the whole request was there, microseconds since the epoch.
    """

    tenant: str
    id: str
    stamp_s: int
    arrived_us: int


class _Tenants(msgspec.Struct, frozen=True):
    kinds: dict[str, Kind]
    work_s: float


class _Ports(msgspec.Struct, frozen=True):
    http: int
    names: int


class Endpoints:
    """The parent's side of the endpoints' process; a context manager. `stop` returns what arrived.

    Args:
        kinds: tenant name to kind. Names go into URLs as they are.
        work_s: seconds after which good endpoints answer.
    """

    def __init__(self, kinds: Mapping[str, Kind], work_s: float = WORK_S) -> None:
        self._tenants = _Tenants(dict(kinds), work_s)
        self._addresses = {tenant: address(i) for i, tenant in enumerate(kinds)}
        self._child: Child | None = None
        self._ports = _Ports(0, 0)

    def __enter__(self) -> Self:
        """Start the process and wait until it listens. Raises `RuntimeError` if it ends before."""
        self._child = Child("bench.support.endpoints", msgspec.json.encode(self._tenants))
        self._ports = msgspec.json.decode(self._child.ready, type=_Ports)
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def name_server(self) -> str:
        """The address of the name server, with its port."""
        return f"127.0.0.1:{self._ports.names}"

    def url(self, tenant: str) -> str:
        """Return the URL for a tenant's messages, with an address."""
        return f"http://{self._addresses[tenant]}:{self._ports.http}/{tenant}"

    def named_url(self, tenant: str) -> str:
        """Return the URL for a tenant's messages, with a name that `name_server` knows."""
        return f"http://{tenant}{ZONE}:{self._ports.http}/{tenant}"

    def stop(self) -> list[Arrival]:
        """End the process; return all arrivals at good endpoints in their order. Empty if it has ended before."""
        child, self._child = self._child, None
        return [] if child is None else msgspec.json.Decoder(Arrival).decode_lines(child.end(_STOP_TIMEOUT_S))


def address(number: int) -> str:
    """Return the loopback address of a tenant by its number, from 0 on."""
    return f"127.{16 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"


# --------------------------------------------------------------------------------------------- the endpoints' process


class _Connection(asyncio.Protocol):
    """One connection of one tenant, to which requests come one after the other."""

    def __init__(self, tenants: _Tenants, log: list[Arrival]) -> None:
        self._kinds, self._work_s, self._log = tenants.kinds, tenants.work_s, log
        self._data = b""
        self._left = 0  # bytes of a huge body that are not written yet
        self._is_full = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._left = 0
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._data[: end + 2]
        size = end + 4 + int(_header(head, b"content-length") or 0)
        if len(self._data) >= size:
            self._data = self._data[size:]
            self._answer(head)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._pour()

    def _answer(self, head: bytes) -> None:
        tenant = head.split(b" ", 2)[1][1:].decode()
        kind, loop = self._kinds[tenant], asyncio.get_running_loop()
        if kind == "huge":
            self._transport.write(_HUGE)
            self._left = HUGE_BYTES
            self._pour()
        elif kind == "drip":
            self._drip(iter(_NO_CONTENT))
        elif kind == "hang":
            self._timer = loop.call_later(HANG_S, self._transport.write, _NO_CONTENT)
        else:
            stamp_s, id_ = int(_header(head, b"webhook-timestamp")), _header(head, b"webhook-id").decode()
            self._log.append(Arrival(tenant, id_, stamp_s, time.time_ns() // 1000))
            if self._work_s:
                self._timer = loop.call_later(self._work_s, self._transport.write, _NO_CONTENT)
            else:
                self._transport.write(_NO_CONTENT)

    def _pour(self) -> None:
        """Write until the transport's buffer is full; the transport then calls `resume_writing` once it is not."""
        while self._left and not self._is_full and not self._transport.is_closing():
            self._transport.write(_CHUNK[: self._left])
            self._left -= min(self._left, len(_CHUNK))

    def _drip(self, bytes_left: Iterator[int]) -> None:
        byte = next(bytes_left, None)
        if byte is not None and not self._transport.is_closing():
            self._transport.write(bytes((byte,)))
            self._timer = asyncio.get_running_loop().call_later(DRIP_S, self._drip, bytes_left)


class _NameServer(asyncio.DatagramProtocol):
    """Answers with the address of a tenant's name (RFC 1035, 4); says nothing of silent names."""

    def __init__(self, tenants: _Tenants) -> None:
        self._addresses = {
            tenant.lower(): socket.inet_aton(address(i))
            for i, (tenant, kind) in enumerate(tenants.kinds.items())
            if kind != "silent-names"
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        end = data.index(b"\0", 12) + 5  # of the question: the name, its end, type and class
        found = self._addresses.get(data[13 : 13 + data[12]].decode().lower())
        if found is not None:
            is_a = data[end - 4 : end - 2] == b"\0\1"
            head = data[:2] + b"\x81\x80\0\1" + (b"\0\1" if is_a else b"\0\0") + b"\0\0\0\0"
            answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + found
            self._transport.sendto(head + data[12:end] + (answer if is_a else b""), addr)


def _header(head: bytes, name: bytes) -> bytes:
    at = head.lower().find(b"\r\n" + name + b":")
    return b"" if at < 0 else head[at + len(name) + 3 : head.index(b"\r\n", at + 2)].strip()


async def _serve(tenants: _Tenants) -> list[Arrival]:
    """Listen until standard input ends; return the arrivals."""
    log: list[Arrival] = []
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), stopped.set)
    wanted = [address(i) for i, kind in enumerate(tenants.kinds.values()) if kind not in ("refuse", "silent-names")]
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    servers = [await loop.create_server(lambda: _Connection(tenants, log), each, port, backlog=1024) for each in wanted]
    names, _ = await loop.create_datagram_endpoint(lambda: _NameServer(tenants), ("127.0.0.1", 0))
    ports = _Ports(port, names.get_extra_info("sockname")[1])
    sys.stdout.write(msgspec.json.encode(ports).decode() + "\n")
    sys.stdout.flush()
    await stopped.wait()
    loop.remove_reader(sys.stdin.fileno())
    names.close()
    for server in servers:
        server.close()
    return log


def main() -> None:
    """Entry point of the endpoints' process."""
    sys.stdout = standard_output.whole(sys.stdout)
    tenants = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Tenants)
    log = uvloop.run(_serve(tenants))
    sys.stdout.buffer.write(msgspec.json.Encoder().encode_lines(log))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

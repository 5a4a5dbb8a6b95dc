"""Looks names up so that silent name servers of some endpoints do not stall the others.

With the package `aiodns` (in the extra `push`), look-ups are sockets of the event loop, and any number may wait.
Without it each look-up takes a thread, and few may wait (`FairResolver`).
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import socket
import time
from collections.abc import Sequence
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from emq.quota.places.threads import Threads

LOOKUPS = 32
"""Most look-ups in threads at once, besides those that wait for a silent name server."""

TIMEOUT_S = 4.0
"""Most seconds of a look-up without threads, below the time that a connection may take."""

NAMES = 3
AWAY_S = 2.0
"""The name server of this host counts as out of reach once look-ups of this many names got no answer, for this many
seconds, and none has succeeded since."""

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
_AS_NUMBERS = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
_SILENT = (socket.EAI_AGAIN, socket.EAI_FAIL)


class NoNameServer(OSError):
    """The name server of this host does not answer; nothing is known of the name."""


class WatchedResolver(AbstractResolver):
    """Tells silent name servers of a name from a silent name server of this host.

    Args:
        inner: looks names up. Its failures `EAI_AGAIN` and `EAI_FAIL` do not mean that the name is wrong.
    """

    def __init__(self, inner: AbstractResolver) -> None:
        self._inner = inner
        self._silent: dict[str, float] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return all addresses of a name.

        Raises:
            NoNameServer: this host's name server is out of reach.
            OSError: there are none, or the name's own servers did not say.
        """
        try:
            found = await self._inner.resolve(host, port, family)
        except OSError as exc:
            now = time.monotonic()
            if exc.errno in _SILENT:
                if len(self._silent) < NAMES:
                    self._silent.setdefault(host, now)
                if len(self._silent) >= NAMES and now >= min(self._silent.values()) + AWAY_S:
                    raise NoNameServer(exc.errno, "the name server of this host does not answer") from exc
            else:
                self._silent.clear()  # an answer: there is no such name
            raise
        self._silent.clear()
        return found

    async def close(self) -> None:
        await self._inner.close()


def build_resolver(name_servers: Sequence[str] | None = None) -> AbstractResolver:
    """Return the better resolver of those that are installed.

    Args:
        name_servers: addresses, with `:PORT` if it is not 53, to ask with `aiodns`; None for those of the system.
    """
    if importlib.util.find_spec("aiodns") is None:
        return WatchedResolver(FairResolver())
    return WatchedResolver(AresResolver(name_servers))


class AresResolver(AbstractResolver):
    """Resolves by c-ares: `/etc/hosts`, then the name servers of `/etc/resolv.conf`.

    aiohttp's own resolver, which uses c-ares too, waits for as long as the connection may take, and does not tell a
    name server that is silent from a name that does not exist.
    """

    def __init__(self, name_servers: Sequence[str] | None = None) -> None:
        self._name_servers = name_servers
        self._resolver: Any = None

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return all addresses of a name; raises `OSError` with `EAI_AGAIN` if no name server answered."""
        import aiodns

        if self._resolver is None:
            self._resolver = aiodns.DNSResolver(nameservers=self._name_servers, timeout=TIMEOUT_S / 3, tries=2)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await self._resolver.getaddrinfo(
                    host, port=port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG
                )
        except TimeoutError:
            raise OSError(socket.EAI_AGAIN, f"no name server answered for {host}") from None
        except aiodns.error.DNSError as exc:
            silent = exc.args[0] in (aiodns.error.ARES_ETIMEOUT, aiodns.error.ARES_ECONNREFUSED)
            number = socket.EAI_AGAIN if silent else socket.EAI_NONAME
            raise OSError(number, str(exc.args[1] if len(exc.args) > 1 else exc)) from None
        return [_of_node(host, port, node) for node in found.nodes]

    async def close(self) -> None:
        """End look-ups under way."""
        resolver, self._resolver = self._resolver, None
        if resolver is not None:
            await resolver.close()


def _of_node(host: str, port: int, node: Any) -> ResolveResult:
    address = node.addr[0].decode("ascii")
    if node.family == socket.AF_INET6 and len(node.addr) > 3 and node.addr[3]:
        # A link-local address is only good with its interface.
        address = f"{address}%{socket.if_indextoname(node.addr[3])}"
    return ResolveResult(hostname=host, host=address, port=port, family=node.family, proto=0, flags=_NUMERIC)


class FairResolver(AbstractResolver):
    """Resolves as the system does (`getaddrinfo`). Each name counts as a tenant of `emq.quota.places.threads`.

    A look-up cannot be cancelled: with a silent name server it holds its thread for up to a minute. In the default
    thread pool of the event loop, with cores + 4 threads, six of these would stall every other look-up.
    """

    def __init__(self) -> None:
        self._threads = Threads(LOOKUPS, "emq-resolver")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """All addresses of a name.

        Raises:
            OSError: there are none, or the name servers did not say.
        """
        found: list[ResolveResult] = await self._threads.run(host, functools.partial(_resolve, port, family), host)
        if not found:
            raise OSError(None, f"{host} has no address")
        return found

    async def close(self) -> None:
        """Let idle threads end."""
        self._threads.close()


def _resolve(port: int, family: socket.AddressFamily, host: str) -> list[ResolveResult]:
    found: list[ResolveResult] = []
    infos = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    for of_family, _, proto, _, address in infos:
        numeric, of_port = str(address[0]), int(address[1])
        if of_family == socket.AF_INET6 and len(address) == 4 and address[3]:
            # A link-local address is only good with its interface, which `getnameinfo` adds.
            numeric, _ = socket.getnameinfo(address, _AS_NUMBERS)
        found.append(
            ResolveResult(hostname=host, host=numeric, port=of_port, family=of_family, proto=proto, flags=_NUMERIC)
        )
    return found

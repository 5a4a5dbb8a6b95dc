"""Name look-ups in threads of their own, so that silent name servers of some endpoints do not stall the others."""

from __future__ import annotations

import functools
import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from emq.places.threads import Threads

LOOKUPS = 32
"""Most look-ups at once, besides those that wait for a silent name server."""

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
_AS_NUMBERS = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV


class FairResolver(AbstractResolver):
    """Resolves as the system does (`getaddrinfo`). Each name counts as a tenant of `emq.places.threads`.

    A look-up cannot be cancelled: one that waits for a silent name server holds its thread for up to a minute. In
    the default thread pool of the event loop, with cores + 4 threads, six of these stall every other look-up.
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
        """Let the threads end that have nothing to do."""
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

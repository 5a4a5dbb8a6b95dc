"""Checks whether push may connect to the URL of an endpoint, when the URL is set, so that a mistake shows at once.

The answer is only advice: hosts check each connection again, since a name may lead elsewhere later.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import yarl
from aiohttp.abc import AbstractResolver

from emq_push.addresses import AddressFilter, ForbiddenAddress
from emq_push.resolver import build_resolver
from emq_push.service.refusals import Invalid

LOOKUP_S = 3.0
"""Seconds for the name look-up; a name server that is slower leaves a warning."""


class Reach:
    """Looks at the addresses of URLs.

    Args:
        addresses: to which of them push may connect.
        resolver: for tests; None for the system's.
    """

    def __init__(self, addresses: AddressFilter, resolver: AbstractResolver | None = None) -> None:
        self.addresses = addresses
        self._resolver = resolver

    async def check(self, url: yarl.URL, name: str = "url", pointer: str = "/url") -> Sequence[str]:
        """Return warnings: the name has no address now.

        Args:
            name: what the caller calls the URL.
            pointer: where the caller's body has it.

        Raises:
            Invalid: an address of the URL is one to which push does not connect.
        """
        host = url.host or ""
        try:
            self.addresses.check_url(url)
            self.addresses.check_host(host)
        except (ValueError, ForbiddenAddress) as exc:
            text = str(exc).replace("push.url", name)
            text = text if text.startswith(name) or name == "url" else f"{name}: {text}"
            raise Invalid("forbidden_address", text, pointer) from exc
        if self.addresses.proxy is not None:
            return []  # the proxy looks names up, and this host may have no way to do so
        if self._resolver is None:
            self._resolver = build_resolver()
        try:
            async with asyncio.timeout(LOOKUP_S):
                found = await self._resolver.resolve(host, url.port or 443, socket.AF_UNSPEC)
        except TimeoutError:
            return [
                f"the name servers did not say within {LOOKUP_S:g} s where {host} is; deliveries wait until they do"
            ]
        except (OSError, UnicodeError):
            return [f"{host} has no address now; deliveries are retried until it has one"]
        for each in found:
            if refusal := self.addresses.refusal(each["host"]):
                text = f"{name}: {host} leads to {refusal}, which is not allowed; use a public address, or allow it"
                raise Invalid("forbidden_address", f"{text} with the setting push_allow", pointer)
        return []

    async def close(self) -> None:
        """Let the threads of look-ups end. Safe to repeat."""
        if self._resolver is not None:
            await self._resolver.close()

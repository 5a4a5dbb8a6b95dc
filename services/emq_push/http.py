"""The HTTP connections of a pusher: their addresses, their lifetime, and the part of an answer that is read."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import aiohttp
import yarl
from aiohttp.abc import AbstractResolver
from multidict import istr

from emq_push.addresses import AddressFilter
from emq_push.proxy import SMOKESCREEN
from emq_push.resolver import build_resolver
from emq_push.wire import Answer
from emq_push.wires import CONNECT_TIMEOUT_S, KEEPALIVE_S, USER_AGENT, Wires

DNS_TTL_S = 30
HEAD_BYTES = 8_190
"""Most bytes of one line of an answer's head, and of one header; a longer one is no answer."""
_READ_BUFFER_BYTES = 4096


class _Once(aiohttp.TCPConnector):
    """Closes a connection at once when its owner is done with it.

    An endpoint that reads nothing, or does not end TLS properly, would keep it open for 30 seconds. A connection that
    is kept for later requests stays with its `Wire`; requests for tokens are too rare to keep one.
    """

    def _release(self, key: Any, protocol: Any, **_: Any) -> None:
        transport = protocol.transport
        super()._release(key, protocol, should_close=True)
        if transport is not None:
            transport.abort()


def build_connector(
    addresses: AddressFilter, resolver: AbstractResolver | None = None, *, pools: bool = True
) -> aiohttp.TCPConnector:
    """Return the maker of connections. It sets no limit: a `Pusher` shares connections among topics.

    Args:
        addresses: asked for each connection, also for a URL without a name. With a proxy all connections go to it, so
            there is nothing to ask.
        resolver: looks names up; the caller closes it.
        pools: False to use no connection for two requests.
    """

    def socket_for(info: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, address = info
        if addresses.proxy is None:
            addresses.check(str(address[0]))
        return socket.socket(family, kind, protocol)

    return (aiohttp.TCPConnector if pools else _Once)(
        socket_factory=socket_for,
        limit=0,
        limit_per_host=0,
        keepalive_timeout=KEEPALIVE_S,
        ttl_dns_cache=DNS_TTL_S,
        resolver=resolver or build_resolver(),
    )


class _Request(aiohttp.ClientRequest):
    """A request without the headers that aiohttp adds by itself, `Accept` and `Accept-Encoding`.

    `skip_auto_headers` would leave them out as well, but copies all headers of each request to do so.
    """

    DEFAULT_HEADERS: dict[istr, str] = {}  # noqa: RUF012  (a class variable in aiohttp, too)


class Connections:
    """One client for all requests of a pusher; opened with the first of them."""

    def __init__(self, addresses: AddressFilter, resolver: AbstractResolver | None = None) -> None:
        self._addresses = addresses
        self._session: aiohttp.ClientSession | None = None
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}
        self._resolver = resolver or build_resolver()
        self._closed = False
        self._wires = Wires(self._connect, to_proxy=addresses.proxy is not None)

    async def deliver(
        self, url: yarl.URL, body: bytes, headers: dict[str, str], timeout_s: float, tls: ssl.SSLContext | None = None
    ) -> Answer:
        """Send a delivery; return the answer, with the beginning of its body. Raises as `request` does."""
        proxy = self._addresses.proxy
        if proxy is None:
            return await self._wires.post(url, body, headers, timeout_s, tls)
        self._addresses.check_literal(url.host or "")
        headers, _ = proxy.headers(url, headers)
        answer = await proxy.through(self._wires.post(url, body, headers, timeout_s, tls), url)
        proxy.check(url, answer.status, is_smokescreen=answer.is_smokescreen)
        return answer

    async def request(
        self,
        method: str,
        url: yarl.URL,
        body: bytes,
        headers: dict[str, str],
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> aiohttp.ClientResponse:
        """Send a request, through the proxy if there is one; return the answer, of which only the head was read.

        The caller must release the answer.

        Raises:
            RuntimeError: after `close`.
            ProxyFailed: the fault is not the endpoint's, see `emq_push.proxy`.
            ForbiddenAddress: the filter refuses the scheme, the port or the address.
        """
        self._addresses.check_url(url)  # also for token servers, which tenants choose as well
        session, proxy, for_proxy = self._session or self._open(), self._addresses.proxy, None
        if proxy is not None:
            self._addresses.check_literal(url.host or "")
            headers, for_proxy = proxy.headers(url, headers)
        sent = session.request(
            method,
            url,
            data=body,
            headers=headers,
            timeout=self._timeout(timeout_s),
            allow_redirects=False,
            ssl=tls or True,
            proxy=None if proxy is None else proxy.url,
            proxy_headers=for_proxy,
        )
        if proxy is None:
            return await sent
        response = await proxy.through(sent, url)
        try:
            proxy.check(url, response.status, is_smokescreen=SMOKESCREEN in response.headers)
        except OSError:
            response.release()
            raise
        return response

    async def close(self) -> None:
        """Close all connections; requests under way fail. Safe to repeat."""
        self._closed = True
        session, self._session = self._session, None
        self._wires.close()
        if session is not None:
            await session.close()
        await self._resolver.close()

    async def _connect(self, url: yarl.URL, tls: ssl.SSLContext | None) -> aiohttp.connector.Connection:
        session = self._session or self._open()
        connector = session.connector
        assert connector is not None
        proxy = self._addresses.proxy
        request = _Request(
            "POST",
            url,
            loop=asyncio.get_running_loop(),
            session=session,
            ssl=tls or True,
            proxy=None if proxy is None else proxy.url,
            proxy_headers=None if proxy is None else {"User-Agent": USER_AGENT, **(proxy.headers(url, {})[1] or {})},
        )
        return await connector.connect(request, [], aiohttp.ClientTimeout(total=None))

    def _timeout(self, timeout_s: float) -> aiohttp.ClientTimeout:
        timeout = self._timeouts.get(timeout_s)
        if timeout is None:
            # `sock_read` would add nothing but a timer for each piece of an answer: `total` covers the reading.
            timeout = self._timeouts[timeout_s] = aiohttp.ClientTimeout(
                total=timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)
            )
        return timeout

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise RuntimeError("the pusher is closed; make a new one")
        self._session = aiohttp.ClientSession(
            connector=build_connector(self._addresses, self._resolver, pools=False),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            # A compressed answer could be of any size once unpacked, and it is of no interest.
            auto_decompress=False,
            read_bufsize=_READ_BUFFER_BYTES,
            max_line_size=HEAD_BYTES,
            max_field_size=HEAD_BYTES,
            headers={"User-Agent": USER_AGENT},
            request_class=_Request,
        )
        return self._session

"""The handler that delivers messages to their tenants' endpoints."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable

import aiohttp
from multidict import istr

from emq import errors
from emq.clock import Clock, SystemClock
from emq.host.throttles import Throttles
from emq.message import Message
from emq.places.places import Places
from emq.push import headers, verdict
from emq.push.addresses import AddressFilter
from emq.push.endpoint import Endpoint
from emq.push.health import Healths
from emq.push.resolver import FairResolver

CONNECT_TIMEOUT_S = 5.0
"""Most seconds for name look-up, connection and TLS; an endpoint's longer time-out applies after that."""
KEEPALIVE_S = 4.0
"""Seconds after which idle connections are dropped. Below the 5 s at which common servers drop theirs: a POST sent into
a connection that is just being closed fails, and must not be repeated unseen."""
DNS_TTL_S = 30
BODY_BYTES = 1024
"""Most bytes read of an answer's body, for the reason; an answer with a longer body costs its connection."""
BODY_TIMEOUT_S = 1.0
"""Most seconds to wait for the body once the status is there."""
_READ_BUFFER_BYTES = 4096
_USER_AGENT = "emq-push"


def build_connector(addresses: AddressFilter) -> aiohttp.BaseConnector:
    """The connection pool. Connections are not limited here: a `Pusher` shares them among topics.

    Args:
        addresses: to which of them a connection may be made; asked for each one, also for a URL without a name.
    """

    def socket_for(info: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, address = info
        addresses.check(str(address[0]))
        return socket.socket(family, kind, protocol)

    return aiohttp.TCPConnector(
        socket_factory=socket_for,
        limit=0,
        limit_per_host=0,
        keepalive_timeout=KEEPALIVE_S,
        ttl_dns_cache=DNS_TTL_S,
        resolver=FairResolver(),
    )


def most_connections() -> int:
    """Half of the files that the process may have open; the other half is for idle connections and everything else."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if files == resource.RLIM_INFINITY else max(16, files // 2)


class _Request(aiohttp.ClientRequest):
    """A request without the headers that aiohttp adds by itself, `Accept` and `Accept-Encoding`.

    `skip_auto_headers` would leave them out as well, but copies all headers of each request to do so.
    """

    DEFAULT_HEADERS: dict[istr, str] = {}  # noqa: RUF012  (a class variable in aiohttp, too)


class Pusher:
    """Delivers messages of any number of topics by HTTP POST; an async handler, and an async context manager.

    Redirects are not followed, cookies not kept, proxy settings of the environment not used. Topics share the
    connections (`emq.places.places`), so that those whose endpoints hang leave some to the others.

    Args:
        endpoint_of: the current endpoint of a topic's name, or None; called for each delivery, so that a change of
            the catalog applies to the next one. See `emq.push.endpoint.Endpoints`.
        clock: for `webhook-timestamp` and `Retry-After` dates.
        addresses: to which addresses it may connect; None for public ones only.
        connections: most requests at once; None for half of the files that the process may have open.
        throttles: returns the throttles of the host, which follow the answers (`emq.push.health`); None to throttle
            nothing.
    """

    def __init__(
        self,
        endpoint_of: Callable[[str], Endpoint | None],
        *,
        clock: Clock | None = None,
        addresses: AddressFilter | None = None,
        connections: int | None = None,
        throttles: Callable[[], Throttles | None] | None = None,
    ) -> None:
        self._endpoint_of = endpoint_of
        self._clock = clock or SystemClock()
        self._healths = Healths(throttles or (lambda: None), self._clock)
        self._addresses = addresses or AddressFilter()
        self._places = Places(connections or most_connections())
        self._session: aiohttp.ClientSession | None = None
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}
        self._closed = False

    async def __call__(self, message: Message) -> None:
        """Deliver one message. Returning means that the endpoint answered 2xx.

        Cancelling closes the connection; whether the endpoint took the message is then unknown.

        Raises:
            Retry: not delivered, see `emq.push.verdict`; also when the topic has no endpoint now.
            Reject: the endpoint is gone (410).
            InvalidTopic: the topic's endpoint is out of range.
        """
        endpoint = self._endpoint_of(message.topic)
        if endpoint is None:
            raise errors.Retry(f"topic {message.topic!r} has no endpoint; set its attribute push.url")
        taken_us = await self._places.take(endpoint.topic)
        try:
            decision = await self._post(endpoint, message)
        finally:
            self._places.free(endpoint.topic, taken_us)
        if decision is not None:
            raise decision

    async def close(self) -> None:
        """Close all connections; deliveries under way fail. Safe to repeat."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Pusher:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _post(self, endpoint: Endpoint, message: Message) -> errors.Retry | errors.Reject | None:
        session = self._session or self._open()
        now_s = self._clock.now()
        try:
            response = await session.post(
                endpoint.url,
                data=message.payload,
                headers=headers.of_delivery(endpoint, message, int(now_s)),
                timeout=self._timeout(endpoint.timeout_s),
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            # TimeoutError is an OSError; ValueError is what the client makes of a URL it cannot use.
            failure = verdict.of_error(exc, endpoint.timeout_s)
            if self._tells(endpoint) and not verdict.is_ours(exc):
                self._healths.silent(endpoint.topic, now_s, failure.reason)
            return failure
        try:
            body = b"" if response.content.at_eof() else await _beginning(response.content)
        finally:
            # Returns the connection to the pool if the answer was read to its end, else closes it.
            response.release()
        status, retry_after = response.status, response.headers.get("Retry-After")
        decision = verdict.of_response(status, retry_after, body, self._clock.now())
        if self._tells(endpoint):
            reason, after_s = ("", None) if decision is None else (decision.reason, verdict.wait_s(decision))
            self._healths.answered(endpoint.topic, now_s, status, reason, after_s)
        return decision

    def _tells(self, endpoint: Endpoint) -> bool:
        """Return True if an answer tells how much the topic's endpoint takes: not if the topic has another one now."""
        if not endpoint.throttles:
            return False
        try:
            current = self._endpoint_of(endpoint.topic)
        except errors.InvalidTopic:
            return False
        return current is endpoint or current == endpoint  # to compare them field by field is dear

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
            connector=build_connector(self._addresses),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            # A compressed answer could be of any size once unpacked, and it is of no interest.
            auto_decompress=False,
            read_bufsize=_READ_BUFFER_BYTES,
            headers={"User-Agent": _USER_AGENT},
            request_class=_Request,
        )
        return self._session


async def _beginning(content: aiohttp.StreamReader) -> bytes:
    """Read up to `BODY_BYTES`. A body that breaks off or drips does not change what the status said."""
    body = b""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while len(body) < BODY_BYTES and not content.at_eof():
                body += await content.read(BODY_BYTES - len(body))
    except (aiohttp.ClientError, OSError):
        pass
    return body

"""The forward proxy of all deliveries; decides who is at fault if one fails there.

The proxy resolves the names of endpoints and decides which addresses it connects to. So this host connects only to the
proxy, whatever its address, and the filter checks only addresses that stand in a URL.

- **Of this host** (give back): the proxy is out of reach, wants other credentials, does not know CONNECT, or fails
  itself. Nothing is charged to an endpoint. A proxy that takes connections and says nothing looks like a silent
  endpoint; if several endpoints are silent at the same time, the proxy counts as silent.
- **Of the endpoint** (retry): the proxy refuses the address (403; 407 of smokescreen, with its own header), or does
  not reach the endpoint (502, 503, 504).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Awaitable
from typing import TypeVar

import aiohttp
import yarl

from emq.runtime import errors, passwords

SILENT_HOSTS = 3
SILENT_S = 2.0
"""The proxy counts as silent once requests to this many hosts got no answer, for this many seconds, and none got one
since."""

SMOKESCREEN = "x-smokescreen-error"
"""Header, in lower case, of smokescreen's own answers."""

_REFUSED = 403
_WANTS_CREDENTIALS = 407
_UNREACHED = (502, 503, 504)
_TEXT = 80


Found = TypeVar("Found")


class ProxyFailed(OSError):
    """The proxy is at fault; nothing is known of the endpoint."""


class ProxyRefused(OSError):
    """The proxy does not let this host connect to the endpoint, or does not reach the endpoint."""


class Proxy:
    """Attributes:
    url: without its credentials.
    """

    def __init__(self, url: yarl.URL) -> None:
        self.url = url.with_user(None)
        account = f"{url.user}:{url.password or ''}".encode()
        basic = f"Basic {base64.b64encode(account).decode()}"
        self._credentials = {"Proxy-Authorization": basic} if url.user else {}
        self._silent: dict[str, float] = {}

    def headers(self, url: yarl.URL, headers: dict[str, str]) -> tuple[dict[str, str], dict[str, str] | None]:
        """Return the headers of a request, and the headers that open a tunnel, which an http URL does not have."""
        if url.scheme == "http":
            return {**headers, **self._credentials}, None
        return headers, dict(self._credentials) or None

    @classmethod
    def of_setting(cls, text: str) -> Proxy | None:
        """Return the proxy of the setting `push_proxy_url`; None if it is empty.

        Raises:
            InvalidSettings: it is not the http URL of a host and a port.
        """
        if not text:
            return None
        try:
            url = yarl.URL(text)
            fits = url.scheme == "http" and bool(url.host) and url.explicit_port and url.raw_path in ("", "/")
        except ValueError:
            fits = False
        if not fits or url.raw_query_string or url.raw_fragment:
            raise errors.InvalidSettings(
                f"settings: push_proxy_url = {passwords.hide_password(text)!r} must be http://HOST:PORT or "
                "http://USER:PASSWORD@HOST:PORT, such as http://127.0.0.1:4750"
            )
        return cls(url.origin() if not url.user else url.with_path(""))

    async def through(self, request: Awaitable[Found], url: yarl.URL) -> Found:
        """Await the answer to a request through the proxy; without an answer, raise an error that says who is at fault.

        Args:
            url: of the endpoint.

        Raises:
            ProxyFailed, ProxyRefused: see the module.
            ClientError, OSError: the endpoint is at fault, as far as this host can tell.
        """
        try:
            found = await request
        except aiohttp.ClientHttpProxyError as exc:
            self._silent.clear()
            is_smokescreen = SMOKESCREEN in map(str.lower, exc.headers or ())
            raise _of_answer(exc.status, exc.message, is_smokescreen=is_smokescreen) from None
        except (aiohttp.ClientProxyConnectionError, aiohttp.ClientConnectorDNSError) as exc:
            # This host resolves no name but the proxy's own.
            raise ProxyFailed(f"the proxy is out of reach: {exc.os_error.strerror or exc.os_error}") from None
        except aiohttp.ClientSSLError:
            self._silent.clear()  # the endpoint said something
            raise
        except (
            aiohttp.ConnectionTimeoutError,
            aiohttp.ServerDisconnectedError,
            aiohttp.ClientOSError,
            ConnectionError,
        ):
            if self._is_silent(url.host or ""):
                raise ProxyFailed(f"the proxy does not answer, for {SILENT_HOSTS} endpoints at once") from None
            raise
        self._silent.clear()
        return found

    def check(self, url: yarl.URL, status: int, *, is_smokescreen: bool) -> None:
        """Raise an error that says who is at fault, for an answer of the proxy itself; an http URL has no tunnel.

        Args:
            url: of the endpoint.
            is_smokescreen: True if the answer has the header `SMOKESCREEN`.

        Raises:
            ProxyFailed, ProxyRefused: see the module.
        """
        if status == _WANTS_CREDENTIALS and url.scheme == "http":  # an endpoint has no reason to say this
            raise _of_answer(status, "", is_smokescreen=is_smokescreen)

    def _is_silent(self, host: str) -> bool:
        """Note that a request to a host found no answer; return whether the proxy is silent."""
        now = time.monotonic()
        if len(self._silent) < SILENT_HOSTS:
            self._silent.setdefault(host, now)
        return len(self._silent) >= SILENT_HOSTS and now >= min(self._silent.values()) + SILENT_S


def _of_answer(status: int, message: str, *, is_smokescreen: bool) -> OSError:
    """Return what an answer of the proxy itself means."""
    said = f"HTTP {status} {message}".strip()[:_TEXT]
    if status == _REFUSED or (status == _WANTS_CREDENTIALS and is_smokescreen):
        return ProxyRefused(f"the proxy refuses to connect there: {said}")
    if status in _UNREACHED:
        return ProxyRefused(f"the proxy does not reach the endpoint: {said}")
    if status == _WANTS_CREDENTIALS:
        return ProxyFailed(f"the proxy wants other credentials (the setting push_proxy_url): {said}")
    return ProxyFailed(f"the proxy failed: {said}")

"""Sends the requests of operations, and returns their decoded answers.

A client is a subclass of `AsyncApi` or `Api` with operations as its methods, each a `Method`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

import aiohttp
import msgspec
import yarl

from emq.runtime import errors
from emq_clients.failures import ApiError, ApiUnavailable
from emq_clients.requests import Page, Request

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUT_S = 30.0
"""Seconds for which one request may take."""
TRIES = 5
"""Most requests for one operation."""
WAIT_S = 0.2
MOST_WAIT_S = 10.0
"""Seconds before the second request, and at most before a later one. Each wait is twice the one before, shortened by a
random part of up to a half, so that many clients do not come back together."""
_AGAIN = frozenset((408, 429, 500, 502, 503, 504))
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of reading an answer that is not one of EMQ's API."""


class AsyncApi:
    """A client for code with an event loop; an async context manager, which many tasks may share.

    A request that gets no answer, or an answer that asks to come back later, is repeated; the API carries it out once.
    All methods raise `ApiError` for a request that the API refuses, and `ApiUnavailable` if no request was answered.
    """

    def __init__(self, url: str, key: str, *, timeout_s: float = TIMEOUT_S, tries: int = TRIES) -> None:
        """Args:
            url: the API's address, such as `https://push.example`.
            key: a bearer key.
            timeout_s: seconds for which one request may take, above 0.
            tries: most requests for one operation, at least 1.

        Raises:
            InvalidSettings: an argument is out of range.
        """
        self._address = _address(url)
        if not key.isascii() or not key.strip() or key != key.strip():
            raise errors.InvalidSettings("the key of EMQ's API must be ASCII text without spaces around it")
        if not timeout_s > 0 or tries < 1:
            raise errors.InvalidSettings(f"timeout_s {timeout_s!r} must be above 0, and tries {tries!r} at least 1")
        self._headers = {"Authorization": f"Bearer {key}", "Accept": "application/json"}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._tries = tries
        self._session: aiohttp.ClientSession | None = None

    async def all(
        self, listing: Callable[P, Coroutine[Any, Any, Page[T]]], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncIterator[T]:
        """Yield the entries of all pages of a list: `async for d in push.all(push.deliveries, "acme")`."""
        while True:
            page = await listing(*args, **kwargs)
            for entry in page.data:
                yield entry
            if page.next is None:
                return
            kwargs["cursor"] = page.next

    async def send(self, request: Request[T]) -> T:
        """Send the request of an operation; return its answer. Raises as the class says."""
        wait_s, trouble = WAIT_S, ""
        for left in reversed(range(self._tries)):
            asked_s: float | None = None
            try:
                status, headers, content = await self._exchange(request)
            except (aiohttp.ClientError, TimeoutError, OSError) as exc:
                trouble = str(exc) or type(exc).__name__
            else:
                if 200 <= status < 300:
                    return _decoded(request, content)
                failure = ApiError(status, _problem(content))
                is_under_way = status == 409 and "Retry-After" in headers
                if not (status in _AGAIN or is_under_way) or (not left and status in (408, 409, 429)):
                    raise failure
                trouble, asked_s = str(failure), _seconds(headers.get("Retry-After"))
            if left:
                await asyncio.sleep(min(MOST_WAIT_S, asked_s or wait_s * random.uniform(0.5, 1.0)))
                wait_s *= 2
        raise ApiUnavailable(f"{request.method} {self._address}{request.path.partition('?')[0]}: {trouble}")

    async def close(self) -> None:
        """Close the connections; requests under way fail. Safe to repeat."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _exchange(self, request: Request[Any]) -> tuple[int, Mapping[str, str], bytes]:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers, cookie_jar=aiohttp.DummyCookieJar())
            # aiohttp would send a PUT or DELETE again by itself, also one that must not be sent twice.
            self._session._retry_connection = False
        headers = dict(request.headers)
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        async with self._session.request(
            request.method,
            yarl.URL(self._address + request.path, encoded=True),
            data=request.body,
            headers=headers,
            timeout=self._timeout,
            allow_redirects=False,
        ) as response:
            return response.status, response.headers, await response.read()


class Api:
    """A client for code without an event loop; a context manager, which many threads may share.

    It has the methods of `AsyncApi`, which run in a thread of their own.
    """

    def __init__(self, url: str, key: str, *, timeout_s: float = TIMEOUT_S, tries: int = TRIES) -> None:
        """Arguments and errors as for `AsyncApi`."""
        self._make = functools.partial(AsyncApi, url, key, timeout_s=timeout_s, tries=tries)
        self._make()
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: AsyncApi | None = None
        self._thread: threading.Thread | None = None

    def all(self, listing: Callable[P, Page[T]], *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        """Yield the entries of all pages of a list: `for d in push.all(push.deliveries, "acme")`."""
        while True:
            page = listing(*args, **kwargs)
            yield from page.data
            if page.next is None:
                return
            kwargs["cursor"] = page.next

    def send(self, request: Request[T]) -> T:
        """Send the request of an operation; return its answer. Raises as `AsyncApi` says."""
        return self.run(lambda client: client.send(request))

    def run(self, work: Callable[[AsyncApi], Coroutine[Any, Any, T]]) -> T:
        """Do work with the client of the thread; return its result. Raises what the work raises."""
        with self._lock:  # so that `_run` finds each request that was given to its loop
            client, loop = self._running()
            sent = asyncio.run_coroutine_threadsafe(work(client), loop)
        try:
            return sent.result()
        except concurrent.futures.CancelledError:
            raise ApiUnavailable("the client was closed before an answer came") from None
        finally:
            sent.cancel()  # Ctrl-C, for one

    def close(self) -> None:
        """Close the connections, and end the thread; requests under way fail. Safe to repeat; a later call opens them
        again.
        """
        with self._lock:
            thread, loop = self._thread, self._loop
            self._thread = self._loop = self._client = None
        if thread is not None and loop is not None and self._pid == os.getpid():
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(loop.stop)
            thread.join(TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _running(self) -> tuple[AsyncApi, asyncio.AbstractEventLoop]:
        """Return the client and the event loop of this process: a forked child has no threads of its parent."""
        if self._client is None or self._loop is None or self._pid != os.getpid():
            client, loop = self._make(), asyncio.new_event_loop()
            thread = threading.Thread(target=self._run, args=(client, loop), name="emq-api-client", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left
                loop.close()
                raise
            self._pid, self._client, self._loop, self._thread = os.getpid(), client, loop, thread
        return self._client, self._loop

    def _run(self, client: AsyncApi, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        finally:
            with self._lock:
                if self._loop is loop:
                    self._thread = self._loop = self._client = None
            try:
                loop.run_until_complete(_end(client))
            finally:
                loop.close()


async def _end(client: AsyncApi) -> None:
    """Cancel all requests, so that no thread waits for them any more; then close the connections."""
    await asyncio.sleep(0)  # begin those that were given to the loop
    requests = asyncio.all_tasks() - {asyncio.current_task()}
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    await client.close()


def _address(url: str) -> str:
    try:
        address = yarl.URL(url)
    except (ValueError, TypeError) as exc:
        raise errors.InvalidSettings(f"{url!r} is not the URL of EMQ's API: {exc}") from None
    if address.scheme not in ("http", "https") or not address.host or address.query_string or address.fragment:
        raise errors.InvalidSettings(f"{url!r} is not the URL of EMQ's API; write https://HOST[:PORT]")
    return str(address).rstrip("/")


def _decoded(request: Request[T], content: bytes) -> T:
    try:
        return msgspec.json.decode(content or b"null", type=request.answer)
    except UNREADABLE as exc:
        where = f"{request.method} {request.path.partition('?')[0]}"
        raise ApiUnavailable(f"{where}: the answer is not one of EMQ's API: {exc}") from exc


def _problem(content: bytes) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except UNREADABLE:
        return {}


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else None


class Method(Generic[P, T]):
    """An operation as a method of both clients: one with an event loop awaits it, one without returns its answer."""

    def __init__(self, operation: Callable[P, Request[T]]) -> None:
        self._operation = operation

    @overload
    def __get__(self, client: AsyncApi, of: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: Api, of: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: None, of: type) -> Callable[..., Any]: ...

    def __get__(self, client: AsyncApi | Api | None, of: type) -> Callable[..., Any]:
        """Return the method of a client; without one, the function of its class, for `help`."""

        async def awaited(*args: P.args, **kwargs: P.kwargs) -> T:
            assert isinstance(client, AsyncApi)
            return await client.send(self._operation(*args, **kwargs))

        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            assert isinstance(client, Api)
            return client.send(self._operation(*args, **kwargs))

        def of_class(client: AsyncApi | Api, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            return self.__get__(client, type(client))(*args, **kwargs)

        call: Callable[..., Any] = of_class if client is None else awaited if isinstance(client, AsyncApi) else called
        return functools.wraps(self._operation)(call)

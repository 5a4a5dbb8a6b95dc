"""What the API itself puts up with: the size of a request, the time that it takes to come, and how many there are."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emq.api import problems
from emq.api.problems import Problem


class Limits(NamedTuple):
    """Attributes:
    body_bytes: most bytes of a body.
    body_s: seconds within which a body must be here.
    at_once: most requests at the same time.
    requests_per_s: most requests of one key a second, on the average; as many more may come at once.
    unknown_per_s: most requests a second, of all callers together, with a key that nobody has.
    """

    body_bytes: int = 8 << 20
    body_s: float = 15.0
    at_once: int = 1_000
    requests_per_s: float = 1_000.0
    unknown_per_s: float = 50.0


class Rates:
    """Counts requests of each key: a token bucket with the tokens of one second.

    Args:
        now_s: monotonic.
    """

    MOST = 10_000
    """Most keys in memory; a key that is forgotten begins with a full bucket."""

    def __init__(self, limits: Limits, now_s: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._now_s = now_s
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, key: str) -> None:
        """Count a request of a key, by its id; empty for a key that nobody has.

        Raises:
            Problem: there are too many.
        """
        rate, now_s = self._limits.requests_per_s if key else self._limits.unknown_per_s, self._now_s()
        left, at_s = self._left.get(key, (max(rate, 1.0), now_s))
        left = min(max(rate, 1.0), left + (now_s - at_s) * rate)
        if left < 1:
            wait_s = math.ceil((1 - left) / rate)
            text = f"at most {rate:g} requests a second; try again in {wait_s} s"
            raise Problem(429, "too_many_requests", text, headers={"Retry-After": str(wait_s)})
        if len(self._left) >= self.MOST and key not in self._left:
            self._left.clear()
        self._left[key] = left - 1, now_s


class Limited:
    """An ASGI middleware that takes a request's body in before the application sees the request.

    Args:
        app: gets each request with its whole body.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._application = app
        self._limits = limits
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        if self._under_way >= self._limits.at_once:
            text = f"more than {self._limits.at_once} requests at once; try again in a second"
            problem = Problem(503, "busy", text, headers={"Retry-After": "1", "Connection": "close"})
            await problems.answer(problem)(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._serve(scope, receive, send)
        finally:
            self._under_way -= 1

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        if not length and b"transfer-encoding" not in headers:
            await self._application(scope, receive, send)
            return
        try:
            body = await self._body(length, receive)
        except Problem as exc:
            await problems.answer(exc)(scope, receive, send)
            return
        if body is None:
            return  # the sender has gone
        is_given = False

        async def given() -> Message:
            nonlocal is_given
            if is_given:
                return await receive()
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._application(scope, given, send)

    async def _body(self, length: bytes, receive: Receive) -> bytes | None:
        most, parts, size = self._limits.body_bytes, list[bytes](), 0
        closing = {"Connection": "close"}
        if length.isdigit() and int(length[:20]) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(self._limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        raise _too_large(most)
                    parts.append(part)
                    if not message.get("more_body"):
                        return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            text = f"the body did not come within {self._limits.body_s:g} s"
            raise Problem(408, "too_slow", text, headers=closing) from None


def _too_large(most: int) -> Problem:
    return Problem(413, "too_large", f"the body has more than {most:,} bytes", headers={"Connection": "close"})

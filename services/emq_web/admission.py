"""Lets requests in: first the key, then a turn, then the body. So nobody without a key makes the API wait or keep much.

A request is refused before its body is read if it has no valid key, if its account has too many requests, or if no turn
comes for it. Only the forms of the pages, which are small, need no key: a visitor who signs in has none yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import fastapi
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emq_push.records.keys import Key
from emq_push.service.service import PushService
from emq_web import problems
from emq_web.access import CALLER, Caller, address_of, bearer_of, no_key
from emq_web.limits import STRANGERS, Limits, Rates, Room, Turn, Turns
from emq_web.pages.gate import session_of
from emq_web.pages.rendering import PREFIX
from emq_web.problems import Problem

ADMITTED = "emq.admitted"
"""Extension of the scope: called with the account once a request of the connection had a valid key."""

TURN = "emq.turn"
"""Where the scope of a request has its `Turn`."""

_LARGE = re.compile(r"/v1/(tenants/[^/]+/messages|pools/.+)")
"""Paths of bodies with messages, tasks or a pool."""

DROPPED = 64 << 20
"""Bytes up to which a body beyond the limit is read and dropped. A client that still sends would not see the answer."""
STRANGERS_DROPPED = 256 << 10
STRANGERS_DROPPED_S = 1.0
"""Bytes and seconds of a body without a valid key that are read and dropped, for the same reason."""


class Head(NamedTuple):
    """The facts about a body in the head of its request.

    Attributes:
        is_there: the request has a body.
        length: bytes that the head announces; 0 for a body in chunks.
        waits: the sender waits for permission before it sends the body.
    """

    is_there: bool
    length: int
    waits: bool

    @classmethod
    def of(cls, headers: Mapping[bytes, bytes]) -> Head:
        given = headers.get(b"content-length", b"")
        length = int(given[:20]) if given.isdigit() else 0
        return cls(length > 0 or b"transfer-encoding" in headers, length, b"expect" in headers)


class _Share(NamedTuple):
    """What all requests with a key have together, or all without one.

    Attributes:
        body_bytes: most bytes of a body.
    """

    turns: Turns
    room: Room
    body_bytes: int


class Admission:
    """An ASGI middleware that takes a request's body in before the application sees the request.

    The scope that it hands on has the caller, or why there is none, as `emq_web.access.CALLER`.

    Args:
        app: gets each request with its whole body.
        service: knows the keys.
    """

    def __init__(self, app: ASGIApp, service: PushService, limits: Limits) -> None:
        self._application = app
        self._service = service
        self._limits = limits
        self._rates = Rates(limits.requests_per_s)
        self._unknown = Rates(limits.unknown_per_s, policy="unknown-keys")
        self._strangers = Rates(limits.strangers_per_s, policy="without-key")
        self._of_accounts = _Share(Turns(limits), Room(limits.held_bytes), limits.body_bytes)
        turns = Turns(limits._replace(at_once=limits.strangers_at_once))
        self._of_strangers = _Share(turns, Room(limits.forms_held_bytes), limits.form_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers, incoming, send = dict(scope["headers"]), _Incoming(receive), _Answering(send)
        head, account = Head.of(headers), STRANGERS
        try:
            account, send.more = await self._account(scope, headers)
            if account == STRANGERS and head.is_there and not scope["path"].startswith(f"{PREFIX}/"):
                raise scope[CALLER]
            if "\0" in scope["path"]:  # PostgreSQL refuses it in texts, with an error that nobody expects
                raise Problem(404, "", "no path has a NUL character; /v1/openapi.json describes all operations")
            share, holder = self._of_accounts, account
            if account == STRANGERS:
                share, holder = self._of_strangers, address_of(scope)
            taken_us = share.turns.take_at_once(holder)
            if taken_us is None:
                taken_us = await share.turns.take(holder)
            scope[TURN] = turn = Turn(share.turns, holder, taken_us)
            try:
                most = share.body_bytes
                if not _LARGE.fullmatch(scope["path"]):
                    most = min(most, self._limits.settings_bytes)
                with _Body(share.room, holder) as body:
                    await self._serve(scope, incoming, send, head, body, most)
            finally:
                turn.free()
        except Problem as exc:
            answer = await self._refusal(exc, head, account, incoming)
            await answer(scope, receive, send)

    async def _account(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[str, Mapping[str, str]]:
        """Return the account of a request, and the headers that tell how many more it may send; note the caller.

        Raises:
            Problem: there are too many requests of the account, or with unknown keys from the address.
        """
        token, keys = bearer_of(headers), self._service.keys
        key = (keys.fresh(token) or await self._owner(keys.owner, token, scope)) if token else None
        scope[CALLER] = no_key(token) if key is None else Caller(key)
        if key is None and (session := session_of(scope["path"], headers)):
            key = await self._owner(keys.session, session, scope)
        if key is None:
            return STRANGERS, self._strangers.take(address_of(scope))
        account = key.account
        if (told := _extension(scope)) is not None:
            told(account)
        return account, self._rates.take(account)

    async def _owner(self, find: Callable[[str], Awaitable[Key | None]], token: str, scope: Scope) -> Key | None:
        address = address_of(scope)
        if not self._service.keys.is_known(token):
            self._unknown.check(address)  # before the look in the database
        key = await find(token)
        if key is None:
            self._unknown.take(address)
        return key

    async def _serve(self, scope: Scope, receive: Receive, send: Send, head: Head, body: _Body, most: int) -> None:
        if not head.is_there:
            await self._application(scope, receive, send)
            return
        if not await self._take_in(body, receive, head, most):
            return  # the sender has gone
        content, is_given = body.whole(), False

        async def given() -> Message:
            nonlocal is_given
            if is_given:
                return await receive()
            is_given = True
            return {"type": "http.request", "body": content, "more_body": False}

        await self._application(scope, given, send)

    async def _take_in(self, body: _Body, receive: Receive, head: Head, most: int) -> bool:
        """Take the body in; return False if the sender has gone. Raises `Problem`."""
        if head.length > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(self._limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    body.add(message.get("body", b""))
                    if body.size > most:
                        raise _too_large(most)
                    if not message.get("more_body"):
                        return True
        except TimeoutError:
            text = f"the body did not come within {self._limits.body_s:g} s"
            raise Problem(408, "too_slow", text) from None

    async def _refusal(self, problem: Problem, head: Head, account: str, incoming: _Incoming) -> fastapi.Response:
        """Return the answer for a problem, after the rest of the body; it ends the connection if there is more."""
        if head.is_there and not incoming.has_ended:
            is_at_end = not head.waits and problem.status != 408 and await self._drop(head, account, incoming)
            if not is_at_end:
                problem = problem.with_headers({"Connection": "close"})
        return problems.answer(problem)

    async def _drop(self, head: Head, account: str, receive: _Incoming) -> bool:
        """Read the rest of a body and drop it; return whether it has come to its end."""
        most, within_s = DROPPED, self._limits.body_s
        if account == STRANGERS:
            most, within_s = STRANGERS_DROPPED, STRANGERS_DROPPED_S
        if head.length > most:
            return False
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while size <= most:
                    message = await receive()
                    if receive.has_ended:
                        return True
                    size += len(message.get("body", b""))
        return False


class _Answering:
    """Passes on the events of an answer, and adds headers to it.

    Attributes:
        more: the headers.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.more: Mapping[str, str] = {}

    async def __call__(self, message: Message) -> None:
        if self.more and message["type"] == "http.response.start":
            more = [(name.lower().encode(), value.encode()) for name, value in self.more.items()]
            self.more = {}
            message["headers"] = [*message["headers"], *more]
        await self._send(message)


class _Incoming:
    """Passes on the events, and knows whether the body has ended, or its sender has gone."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.has_ended = False

    async def __call__(self) -> Message:
        message = await self._receive()
        self.has_ended = not message.get("more_body", False)
        return message


class _Body:
    """A body in memory, for the length of a block."""

    def __init__(self, room: Room, account: str) -> None:
        self._room, self._account = room, account
        self._parts: list[bytes] = []
        self.size = 0

    def __enter__(self) -> _Body:
        return self

    def __exit__(self, *exc: object) -> None:
        self._room.free(self._account, self.size)

    def add(self, part: bytes) -> None:
        self._room.take(self._account, len(part))
        self.size += len(part)
        self._parts.append(part)

    def whole(self) -> bytes:
        content = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        return content


def _extension(scope: Scope) -> Callable[[str], None] | None:
    found: Callable[[str], None] | None = (scope.get("extensions") or {}).get(ADMITTED)
    return found


def _too_large(most: int) -> Problem:
    return Problem(413, "too_large", f"the body has more than {most:,} bytes", headers={"Connection": "close"})

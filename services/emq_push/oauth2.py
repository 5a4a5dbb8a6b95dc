"""Tokens of OAuth 2.0 by client credentials (RFC 6749, section 4.4), fetched once for many deliveries."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import quote_plus

import aiohttp
import msgspec
import yarl

from emq.runtime import errors
from emq.runtime.clock import Clock
from emq_push import endpoint_values, verdict

TIMEOUT_S = 10.0
"""Most seconds for fetching a token."""
DEFAULT_LIFE_S = 300.0
"""Lifetime of a token, in seconds, if its server names none."""
MOST_LIFE_S = 86_400.0
EARLY = 0.1
MOST_EARLY_S = 60.0
"""A token is fetched again this part of its life before its end, and at most this many seconds before. Deliveries use
it meanwhile."""
REFUSED_S = 5.0
"""Seconds after a failed fetch in which the token server is not asked again."""
ANSWER_BYTES = 65_536
log = logging.getLogger(__name__)

FEW = 1_000
"""Number of known tokens from which on ended ones are looked for."""


@dataclasses.dataclass(frozen=True, slots=True)
class OAuth2:
    """Attributes:
    url: of the token server.
    scope: the permissions of the token; empty for the server's default.
    """

    url: yarl.URL
    client_id: str
    secret: str = dataclasses.field(repr=False)
    scope: str = ""


class _Answer(msgspec.Struct):
    access_token: str
    token_type: str = "bearer"
    expires_in: float | str | None = None


_decode = msgspec.json.Decoder(_Answer).decode


@dataclasses.dataclass(slots=True)
class _Token:
    """Attributes:
    until: when to fetch the token again, or to ask again after a failure; seconds since the epoch.
    ends: when it must not be used any more; seconds since the epoch.
    failure: why there is none; None if there is.
    """

    authorization: str
    until: float
    ends: float
    failure: verdict.Failure | None = None


Post = Callable[[yarl.URL, bytes, dict[str, str], float], Awaitable[aiohttp.ClientResponse]]
"""Sends a request by the pusher's own connections, which filter addresses: URL, body, headers, seconds."""


class Tokens:
    """The tokens of all endpoints, by their credentials.

    While one delivery fetches a token, others with the same credentials wait for it, unless they have a good one. A
    token server that is down or refuses is left alone for `REFUSED_S`. Only deliveries that need it fail, once they
    have no good token.

    Args:
        post: sends the request for a token.
        clock: tells when tokens end.
    """

    def __init__(self, post: Post, clock: Clock) -> None:
        self._post = post
        self._clock = clock
        self._known: dict[OAuth2, _Token] = {}
        self._fetching: dict[OAuth2, asyncio.Task[_Token]] = {}
        self._most = FEW

    async def authorization(self, credentials: OAuth2) -> str:
        """Return the value of `Authorization`.

        Raises:
            Retry: the token server gave none; the text says why.
            GiveBack: the server was not asked, because of a fault of this host.
        """
        token = self._known.get(credentials)
        now = self._clock.now()
        if token is None or token.ends <= now:
            token = await asyncio.shield(self._fetched(credentials))  # a cancelled delivery takes it from no other
        elif token.until <= now:
            self._fetched(credentials)
        if token.failure is not None:
            text = f"no token from {credentials.url.host}: {token.failure.reason}"
            if isinstance(token.failure, errors.GiveBack):
                raise errors.GiveBack(text, pause_s=token.failure.pause_s)
            raise errors.Retry(text)
        return token.authorization

    async def prepare(self, credentials: OAuth2) -> None:
        """Wait until `authorization` returns a token, or raises, without a request."""
        token = self._known.get(credentials)
        if token is None or token.ends <= self._clock.now():
            await asyncio.shield(self._fetched(credentials))

    def refused(self, credentials: OAuth2, authorization: str) -> bool:
        """Note that the endpoint refused a token; return True if another one may help."""
        token = self._known.get(credentials)
        if token is None or token.authorization == authorization:
            self._known.pop(credentials, None)
            return True
        return token.failure is None

    async def close(self) -> None:
        """End fetches under way."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _fetched(self, credentials: OAuth2) -> asyncio.Task[_Token]:
        task = self._fetching.get(credentials)
        if task is None:
            task = self._fetching[credentials] = asyncio.create_task(self._fetch(credentials), name="emq token")
            task.add_done_callback(lambda _: self._fetching.pop(credentials, None))
        return task

    async def _fetch(self, credentials: OAuth2) -> _Token:
        began = self._clock.now()
        try:
            authorization, life_s = await self._ask(credentials)
        except Exception as exc:
            if not isinstance(exc, aiohttp.ClientError | OSError | ValueError):
                log.exception("no token from %s", credentials.url.host)
            again_at, before = self._clock.now() + REFUSED_S, self._known.get(credentials)
            if before is not None and before.failure is None and before.ends > self._clock.now():
                before.until = again_at
                return before
            token = _Token("", again_at, again_at, verdict.of_error(exc, TIMEOUT_S))
        else:
            ends = began + life_s
            token = _Token(authorization, ends - min(MOST_EARLY_S, life_s * EARLY), ends)
        if len(self._known) >= self._most:
            now = self._clock.now()
            self._known = {key: known for key, known in self._known.items() if known.ends > now}
            self._most = max(FEW, 2 * len(self._known))
        self._known[credentials] = token
        return token

    async def _ask(self, credentials: OAuth2) -> tuple[str, float]:
        form = {"grant_type": "client_credentials"} | ({"scope": credentials.scope} if credentials.scope else {})
        body = "&".join(f"{name}={quote_plus(value)}" for name, value in form.items()).encode()
        # RFC 6749, section 2.3.1: both are form-encoded before they become user and password.
        account = f"{quote_plus(credentials.client_id)}:{quote_plus(credentials.secret)}"
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
            "Authorization": endpoint_values.basic("push.oauth2.client_id", account),
        }
        response = await self._post(credentials.url, body, headers, TIMEOUT_S)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                text = await response.content.read(ANSWER_BYTES)
                while len(text) < ANSWER_BYTES and not response.content.at_eof():
                    text += await response.content.read(ANSWER_BYTES - len(text))
        finally:
            response.release()
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}")
        try:
            answer = _decode(text)
            life_s = DEFAULT_LIFE_S if answer.expires_in is None else float(answer.expires_in)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
            raise ValueError("its answer has no access_token") from None
        token = answer.access_token
        if not token:
            raise ValueError("its answer has no access_token")
        if answer.token_type.lower() != "bearer" or not (token.isascii() and token.isprintable()) or " " in token:
            raise ValueError(f"its token of type {answer.token_type[:20]!r} cannot be used; a bearer token can")
        return f"Bearer {token}", min(max(1.0, life_s), MOST_LIFE_S)

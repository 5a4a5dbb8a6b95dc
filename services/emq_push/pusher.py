"""The handler that delivers messages to their tenants' endpoints."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver

from emq.host.throttles import Throttles
from emq.quota.places.places import Places
from emq.runtime import errors
from emq.runtime.clock import Clock, SystemClock
from emq.storage.message import Message
from emq.trail import events
from emq_push import asking, attempts, batches, files, handshake, headers, verdict
from emq_push.addresses import AddressFilter
from emq_push.attempts import Attempt
from emq_push.destinations import HTTP, POLL, Destinations, Parcel
from emq_push.endpoint import Endpoint, KeyMissing
from emq_push.health import Healths
from emq_push.http import Connections
from emq_push.masking import Masking, secrets_of
from emq_push.oauth2 import OAuth2, Tokens
from emq_push.outages import Change, Outages
from emq_push.verdict import Outcome
from emq_push.wire import Answer

KEY_S = 30.0
"""Seconds for which a topic pauses on a host that lacks the key of its secrets. A host reads its keys as it starts."""


@dataclass(frozen=True, slots=True)
class Reports:
    """The receivers of a pusher's reports.

    Attributes:
        throttles: returns the throttles of the host, which follow the answers (`emq_push.health`).
        attempted: takes the record of each attempt, at once, and raises nothing; None to keep no records.
        change: disables an endpoint in the catalog (`emq_push.outages`); None to disable nothing.
        heard: keeps endpoints' answers to handshakes (`emq_push.asking`); None to drop them.
    """

    throttles: Callable[[], Throttles | None] = lambda: None
    attempted: Callable[[Attempt], object] | None = None
    change: Change | None = None
    heard: asking.Told | None = None


class Pusher:
    """Delivers messages of any number of topics by HTTP POST; an async handler, and an async context manager.

    Follows no redirects, keeps no cookies, and uses no proxy but that of `addresses`. Topics share the connections
    (`emq.quota.places.places`), so that hanging endpoints leave some to the others.

    Args:
        endpoint_of: the current endpoint of a topic's name, or None; called for each delivery, so that a change of
            the catalog applies to the next one. See `emq_push.endpoint.Endpoints`.
        clock: for `webhook-timestamp` and `Retry-After` dates.
        addresses: to which addresses it may connect, and through which proxy; None for public ones, directly.
        connections: most requests at once; None for half of the files that the process may have open.
        reports: get its observations; None for nobody.
        resolver: looks names up, and is closed with the pusher; None for the system's name servers.
        destinations: of other kinds than HTTP, closed with the pusher; None for none.
    """

    def __init__(
        self,
        endpoint_of: Callable[[str], Endpoint | None],
        *,
        clock: Clock | None = None,
        addresses: AddressFilter | None = None,
        connections: int | None = None,
        reports: Reports | None = None,
        resolver: AbstractResolver | None = None,
        destinations: Destinations | None = None,
    ) -> None:
        reports = reports or Reports()
        self._endpoint_of = endpoint_of
        self._clock = clock or SystemClock()
        self._healths = Healths(reports.throttles, self._clock)
        self._outages = Outages(reports.change, self._clock)
        self._attempted = reports.attempted or (lambda _: None)
        self._heard = reports.heard
        self._addresses = addresses or AddressFilter()
        self._places = Places(connections or files.most_connections())
        self._connections = Connections(self._addresses, resolver)
        self._destinations = destinations or Destinations(None)
        self._tokens = Tokens(functools.partial(self._connections.request, "POST"), self._clock)
        self._batches = batches.Batches(self._send, self._clock)
        self._random = random.Random()

    async def __call__(self, message: Message) -> None:
        """Deliver one message. Returning means that the endpoint answered 2xx.

        Cancelling closes the connection; whether the endpoint took the message is then unknown.

        Raises:
            Retry: not delivered, see `emq_push.verdict`; also when the topic has no endpoint now.
            GiveBack: not tried, since the endpoint is disabled or gone, or this host lacks something.
            InvalidTopic: the topic's endpoint is out of range.
        """
        try:
            endpoint = self._endpoint_of(message.topic)
        except KeyMissing as exc:
            raise errors.GiveBack(f"this host: {exc}", pause_s=KEY_S) from None
        if endpoint is None:
            raise errors.Retry(f"topic {message.topic!r} has no endpoint; set its attribute push.url")
        if endpoint.disabled:
            raise errors.GiveBack(f"the endpoint is disabled: {endpoint.disabled}", pause_s=verdict.GONE_S)
        if (question := asking.question_of(message)) is not None:
            await self._ask(endpoint, question)
            return
        try:
            sent = message if endpoint.template is None else endpoint.template.rewritten(message)
        except ValueError as exc:
            # Somebody may correct the template before the last attempt.
            outcome = Outcome(self._clock.now_us(), 0, failure=errors.Retry(f"template: {exc}"))
        else:
            if endpoint.batch is not None and batches.fits(endpoint, sent):
                outcome = await self._batches.join(endpoint, sent)
            else:
                outcome = await self._send(endpoint, (sent,))
        self._conclude(endpoint, message, outcome)

    def expired(self, message: Message) -> None:
        """Note that a message became a dead letter because its time to live was over before its next attempt."""
        now_us = self._clock.now_us()
        ended = Attempt(message.topic, message.id, message.attempt, now_us, 0, 0, attempts.EXPIRED, events.EXPIRED)
        self._attempted(ended)

    async def close(self) -> None:
        """Close all connections; deliveries under way fail. Safe to repeat."""
        await self._batches.close()
        await self._tokens.close()
        await self._outages.close()
        await self._destinations.close()
        await self._connections.close()

    async def __aenter__(self) -> Pusher:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _send(self, endpoint: Endpoint, messages: Sequence[Message]) -> Outcome:
        """Send messages in one request, once a connection is free."""
        taken_us = self._places.take_at_once(endpoint.topic)
        if taken_us is None:
            taken_us = await self._places.take(endpoint.topic)
        try:
            return await self._post(endpoint, messages)
        finally:
            self._places.free(endpoint.topic, taken_us)

    async def _ask(self, endpoint: Endpoint, question: asking.Question) -> None:
        """Ask for permission to deliver, once a connection is free, and report the answer."""
        topic, url = endpoint.topic, endpoint.written_url
        taken_us = await self._places.take(topic)
        try:
            allowed = await handshake.handshake(endpoint, question.origin, question.qps, self._addresses)
            answer = asking.Answer(topic, url, question, allowed.attributes, allowed.rate_per_min)
        except errors.InvalidTopic as exc:
            answer = asking.Answer(topic, url, question, None, reason=str(exc))
        finally:
            self._places.free(topic, taken_us)
        if self._heard is not None:
            await self._heard(answer)

    async def _post(self, endpoint: Endpoint, messages: Sequence[Message]) -> Outcome:
        if endpoint.oauth2 is not None:
            await self._tokens.prepare(endpoint.oauth2)  # a slow token server is not the endpoint's fault
        began_us = self._clock.now_us()
        began = began_us / 1e6
        body, head = headers.of_request(endpoint, messages, int(began))
        status, retry_after, answer = 0, None, ""
        failure: verdict.Failure | None
        try:
            found = await self._request(endpoint, messages, body, head)
        except (errors.Retry, errors.GiveBack) as exc:  # there is no token
            failure = exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            # TimeoutError is an OSError; the client raises ValueError for a URL that it cannot use.
            failure = verdict.of_error(exc, endpoint.timeout_s)
        else:
            status, retry_after = found.status, found.retry_after
            answer = _masked(endpoint, head, verdict.text_of(found.body)) if found.body else ""
            failure = verdict.of_response(status, retry_after, answer, self._clock.now())
        self._tell(endpoint, began, status, failure)
        return Outcome(began_us, self._clock.now_us() - began_us, status, answer, failure)

    def _request(
        self, endpoint: Endpoint, messages: Sequence[Message], body: bytes, head: dict[str, str]
    ) -> Coroutine[Any, Any, Answer]:
        """Send a request, with a token if the endpoint needs one."""
        if endpoint.url.scheme not in HTTP:
            of = (endpoint.topic, endpoint.url, endpoint.timeout_s, endpoint.disable_after_s)
            return self._destinations.deliver(Parcel(*of, messages, body, head))
        self._addresses.check_url(endpoint.url)
        if endpoint.oauth2 is not None:
            return self._authorized(endpoint, endpoint.oauth2, body, head)
        return self._connections.deliver(endpoint.url, body, head, endpoint.timeout_s, endpoint.tls)

    async def _authorized(self, endpoint: Endpoint, credentials: OAuth2, body: bytes, head: dict[str, str]) -> Answer:
        """Send a request with a token; once more with another if the endpoint refuses this one.

        Both requests together get the endpoint's time-out; a token server has its own.
        """
        loop = asyncio.get_running_loop()
        post, timeout_s = self._connections.deliver, endpoint.timeout_s
        head["Authorization"] = used = await self._tokens.authorization(credentials)
        began = loop.time()
        answer = await post(endpoint.url, body, head, timeout_s, endpoint.tls)
        if answer.status == 401 and self._tokens.refused(credentials, used):
            left_s = timeout_s - (loop.time() - began)
            head["Authorization"] = await self._tokens.authorization(credentials)
            async with asyncio.timeout(left_s):
                answer = await post(endpoint.url, body, head, timeout_s, endpoint.tls)
        return answer

    def _tell(self, endpoint: Endpoint, began: float, status: int, failure: verdict.Failure | None) -> None:
        """Report an answer, or its absence, unless the topic has another endpoint now."""
        is_ours = isinstance(failure, errors.GiveBack) and status != verdict.GONE
        try:
            current = None if is_ours else self._endpoint_of(endpoint.topic)
        except errors.InvalidTopic:
            return
        if current is not endpoint and current != endpoint:  # comparing them field by field costs much
            return
        if endpoint.throttles:
            if status:
                reason, after_s = ("", None) if failure is None else (failure.reason, verdict.wait_s(failure))
                self._healths.answered(endpoint.topic, began, status, reason, after_s)
            elif failure is not None:
                self._healths.silent(endpoint.topic, began, failure.reason)
        if failure is None:
            self._outages.succeeded(endpoint)
        elif status == verdict.GONE:
            self._outages.gone(endpoint, failure.reason)
        elif status != verdict.TOO_MANY:
            self._outages.failed(endpoint, failure.reason)

    def _conclude(self, endpoint: Endpoint, message: Message, outcome: Outcome) -> None:
        """Record the attempt, and raise its failure."""
        failure, next_us = outcome.failure, 0
        ended_as = attempts.PLACED if endpoint.url.scheme == POLL else attempts.DELIVERED
        if isinstance(failure, errors.GiveBack):
            ended_as = attempts.PARKED
        elif failure is not None:
            if endpoint.schedule.is_last(message.attempt):
                ended_as = attempts.DEAD
            else:
                ended_as = attempts.RETRY
                if endpoint.schedule.decides:
                    # The schedule is the floor: an endpoint cannot use up its attempts by asking for short waits.
                    wait_s = max(failure.after_s or 0.0, endpoint.schedule.wait_s(message.attempt, self._random))
                    failure = errors.Retry(failure.reason, after_s=wait_s)  # each message of a batch has its own
                    next_us = self._clock.now_us() + int(wait_s * 1e6)
                    next_us = min(next_us, message.expires_us or next_us)
        self._attempted(
            Attempt(
                message.topic,
                message.id,
                message.attempt,
                outcome.started_us,
                outcome.took_us,
                outcome.status,
                ended_as,
                "" if failure is None else failure.reason,
                outcome.answer[: attempts.ANSWER_CHARACTERS],
                next_us,
            )
        )
        if failure is not None:
            raise failure


def _masked(endpoint: Endpoint, head: dict[str, str], text: str) -> str:
    """Return an endpoint's answer without secrets: its own, and the token that it got."""
    if endpoint.oauth2 is not None:
        text = Masking(secrets_of(head.get("Authorization", "")))(text)
    return endpoint.masked(text)

"""Polling: a tenant's consumer fetches messages from the log of an endpoint, and acknowledges them by cursor."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

import sqlalchemy as sa

from emq.quota.places import sharing
from emq.runtime import errors
from emq_push.destinations import POLL_URL
from emq_push.records import cursors, rows
from emq_push.records.accepted import Accepted, Message
from emq_push.records.endpoints import Endpoints, topic_of
from emq_push.records.poll_log import Entries, PollLog, State
from emq_push.service.parts import Parts
from emq_push.service.refusals import Conflict, unknown_endpoint

MOST_WAIT_S = 20.0
"""Most seconds for which a request waits for a message."""

LOOK_S = 0.25
"""Seconds between two looks for all waiting requests of a process."""

MOST_WAITING = 2_000
"""Most requests of a process that wait; beyond the share of its tenant, a request is answered at once."""


class Polled(NamedTuple):
    """A message in the log of an endpoint.

    Attributes:
        cursor: acknowledges it, with all before it.
    """

    message: Message
    cursor: str


class PollService:
    """Fetches and acknowledges messages. Belongs to one event loop."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._log = PollLog(parts.environment)
        self._endpoints = Endpoints(parts.environment)
        self._messages = Accepted(parts.environment)
        self._arrivals = Arrivals(self._ends)

    async def fetch(
        self,
        tenant: str,
        endpoint: str,
        after: str,
        limit: int,
        wait_s: float,
        lent: Callable[[], AbstractAsyncContextManager[None]],
    ) -> Sequence[Polled]:
        """Return the next messages in the log of an endpoint; none if none comes in time. Changes nothing.

        Args:
            after: cursor of the last message that the caller has; empty for all that are not acknowledged.
            limit: most messages.
            wait_s: seconds for which to wait for the first one, at most `MOST_WAIT_S`.
            lent: opens the block within which the request only waits.

        Raises:
            NotFound: there is no such endpoint.
            Conflict: it is not a polling endpoint.
            InvalidCursor: the cursor is not one of this endpoint.
        """
        number = self._number(tenant, endpoint, after)
        found = await self._parts.read(lambda c: self._read(c, tenant, endpoint, number, limit))
        if not found.rows and wait_s > 0:
            async with lent():
                came = await self._arrivals.wait(topic_of(tenant, endpoint), tenant, found.end, wait_s)
            if came:
                found = await self._parts.read(lambda c: self._read(c, tenant, endpoint, number, limit))
        ids = [entry.message for entry in found.rows]
        messages: dict[str, Message] = {}
        for some in rows.chunks(ids):
            messages |= await self._parts.read(lambda c, ids=some: self._messages.find_alone(c, tenant, ids))  # type: ignore[misc]
        of = self._of(tenant, endpoint)
        return [
            Polled(messages[entry.message], cursors.encode((of, entry.number)))
            for entry in found.rows
            if entry.message in messages
        ]

    async def acknowledge(self, tenant: str, endpoint: str, cursor: str) -> int:
        """Settle all messages of the log up to a cursor as delivered; return how many there were. Safe to repeat.

        Raises:
            NotFound, Conflict, InvalidCursor: as for `fetch`.
        """
        number, topic, count = self._number(tenant, endpoint, cursor), topic_of(tenant, endpoint), 0
        await self._parts.read(lambda c: self._check(c, tenant, endpoint))
        while True:
            now_us = self._parts.now_us()
            some = await self._parts.write(lambda c: self._log.acknowledge(c, topic, number, now_us))  # noqa: B023
            count += some
            if some < rows.IDS_AT_ONCE:
                return count

    async def state(self, tenant: str, endpoint: str) -> State | None:
        """Return the state of an endpoint's log; None if it is not a polling endpoint."""

        def read(connection: sa.Connection) -> State | None:
            found = self._endpoints.find(connection, tenant, endpoint)
            polled = found is not None and found.settings.url == POLL_URL
            return self._log.state(connection, topic_of(tenant, endpoint)) if polled else None

        return await self._parts.read(read)

    async def close(self) -> None:
        """Let waiting requests go on, with nothing. Safe to repeat."""
        await self._arrivals.close()

    def _read(self, connection: sa.Connection, tenant: str, endpoint: str, after: int, limit: int) -> Entries:
        self._check(connection, tenant, endpoint)
        return self._log.read(connection, tenant, topic_of(tenant, endpoint), after, limit)

    def _check(self, connection: sa.Connection, tenant: str, endpoint: str) -> None:
        found = None if "\0" in endpoint else self._endpoints.find(connection, tenant, endpoint)
        if found is None or found.is_going:
            raise unknown_endpoint(endpoint)
        topic = topic_of(tenant, endpoint)
        # One that was a polling endpoint may still have messages in its log.
        if found.settings.url != POLL_URL and not self._log.read(connection, tenant, topic, 0, 1).rows:
            text = (
                f"endpoint {endpoint!r} is not polled; its messages go to its url. One with the url 'poll:' is polled"
            )
            raise Conflict("not_polled", text)

    async def _ends(self, topics: Sequence[str]) -> dict[str, int]:
        return await self._parts.read(lambda c: self._log.ends(c, topics))

    def _number(self, tenant: str, endpoint: str, cursor: str) -> int:
        return int(cursors.decode_marked(f"poll {tenant} {endpoint}", cursor, int)[0]) if cursor else 0

    def _of(self, tenant: str, endpoint: str) -> str:
        return cursors.mark(f"poll {tenant} {endpoint}")


class _Waiter(NamedTuple):
    topic: str
    end: int
    came: asyncio.Future[bool]


class Arrivals:
    """Tells waiting requests that their logs have grown: one look for all of them, and none while nobody waits.

    Args:
        ends: returns the last number of each log, of at most `IDS_AT_ONCE` topics.
    """

    def __init__(self, ends: Callable[[Sequence[str]], Awaitable[Mapping[str, int]]]) -> None:
        self._ends = ends
        self._waiters: set[_Waiter] = set()
        self._of: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, topic: str, tenant: str, end: int, wait_s: float) -> bool:
        """Wait until a log is longer than to `end`; return False if it is not in time, or too many wait."""
        if sharing.room(MOST_WAITING, len(self._waiters), self._of[tenant]) < 1:
            return False
        waiter = _Waiter(topic, end, asyncio.get_running_loop().create_future())
        self._waiters.add(waiter)
        self._of[tenant] += 1
        if self._task is None:
            self._task = asyncio.create_task(self._look(), name="emq polls")
        try:
            async with asyncio.timeout(wait_s):
                return await waiter.came
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
            self._of -= Counter({tenant: 1})

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for waiter in self._waiters:
            if not waiter.came.done():
                waiter.came.set_result(False)

    async def _look(self) -> None:
        try:
            while self._waiters:
                await asyncio.sleep(LOOK_S)
                for some in rows.chunks(sorted({waiter.topic for waiter in self._waiters})):
                    with contextlib.suppress(errors.DatabaseUnavailable):
                        self._told(await self._ends(some))
        finally:
            self._task = None  # whatever happened, the next request begins again

    def _told(self, ends: Mapping[str, int]) -> None:
        for waiter in self._waiters:
            if ends.get(waiter.topic, 0) > waiter.end and not waiter.came.done():
                waiter.came.set_result(True)

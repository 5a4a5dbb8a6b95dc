"""Counts of each tenant's messages so far, for the live table. The process that publishes and sends counts them.

The proof uses none of these counts. It uses the trail, the store and the receivers' logs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from emq.runtime import errors
from emq.storage.message import Message
from emq_demo import scenario

Deliver = Callable[[Message], Awaitable[object]]

_FIRST_ATTEMPT = 1


class TenantTally:
    """Counts of one tenant.

    Attributes:
        backlog: for each priority, highest first: number of messages published and not yet started.
        started, delivered, retries, dead: numbers so far; `retries` counts failed attempts with a retry to follow.
        delayed: number of messages that wait for their next attempt.
        in_flight: number of messages at the endpoint now.
        rate: starts in the last full second.
        wait_us: 99th percentile of the waits of that second's first attempts, in microseconds; 0 without any.
    """

    def __init__(self) -> None:
        self.backlog = [0] * len(scenario.PRIORITIES)
        self.started = self.delivered = self.retries = self.delayed = self.dead = self.in_flight = 0
        self.rate = self.wait_us = 0
        self._second = 0
        self._started_before = 0
        self._waits: list[int] = []

    def start(self, m: Message) -> None:
        second = m.started_us // 1_000_000
        if second != self._second:
            self.turn(second)
        self.started += 1
        self.in_flight += 1
        if m.attempt == _FIRST_ATTEMPT:
            self.backlog[m.priority] -= 1
            self._waits.append(m.started_us - m.published_us)
        else:
            self.delayed -= 1

    def turn(self, second: int) -> None:
        """Begin a new second. `Play.draw` calls this too, because a tenant may start no message in a second."""
        if second == self._second:
            return
        full = second == self._second + 1
        self.rate = self.started - self._started_before if full else 0
        waits = sorted(self._waits) if full else []
        self.wait_us = waits[(len(waits) - 1) * 99 // 100] if waits else 0
        self._second = second
        self._started_before = self.started
        self._waits.clear()


class Tally:
    """Counts of all tenants, and the handler that counts each message before it calls the pusher.

    Args:
        carriers: the topics.
        deliver: the handler that does the work, the pusher.
    """

    def __init__(self, carriers: Iterable[str], deliver: Deliver) -> None:
        self.tenants = {carrier: TenantTally() for carrier in carriers}
        self._deliver = deliver

    def published(self, carrier: str, priority: int, count: int) -> None:
        self.tenants[carrier].backlog[priority] += count

    async def __call__(self, m: Message) -> None:
        tenant = self.tenants[m.topic]
        tenant.start(m)
        try:
            await self._deliver(m)
            tenant.delivered += 1
        except errors.Retry:
            if m.attempt < scenario.MAX_ATTEMPTS:
                tenant.retries += 1
                tenant.delayed += 1
            else:
                tenant.dead += 1
            raise
        finally:
            tenant.in_flight -= 1

    def busy(self, carriers: Sequence[str]) -> bool:
        """Return whether any of these tenants has messages that wait or are at its endpoint."""
        return any(t.in_flight or t.delayed or any(t.backlog) for t in map(self.tenants.__getitem__, carriers))

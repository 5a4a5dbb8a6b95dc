"""The running part of the demonstration: host, publishers and live table in one event loop, step by step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence

from emq import App
from emq.host import garbage_collection
from emq.host.options import CATALOG_POLL_S
from emq.storage.message import Message
from emq.topics.model import Topic, TopicOptions, split
from emq_demo import leftovers, notices
from emq_demo.leftovers import Leftovers
from emq_demo.machine import Usage, taken_by_others
from emq_demo.measures import Span
from emq_demo.notices import Notices
from emq_demo.receivers import Receivers
from emq_demo.scenario import (
    BACKOFF_S,
    FLOOD_FACTOR,
    FLOODED,
    GROUP_QPS,
    MAX_ATTEMPTS,
    PRIORITIES,
    TROUBLE_SUFFIX,
    TROUBLES,
    Scenario,
)
from emq_demo.tally import Tally
from emq_demo.traffic import Traffic
from emq_demo.view import FRAME_S, Frame, Row, Screen
from emq_notices.notice import TOPIC
from emq_push.addresses import AddressFilter
from emq_push.endpoint import Endpoints
from emq_push.pusher import Pusher

WARM_UP_S = 1.2
"""Seconds before the first flight: a new counter grants nothing in the second in which it is made."""
SETTLE_S = 1.0
"""Seconds at the start of each half whose waits are not compared: connections open, caches fill."""
DRAIN_S = 5.0
"""Longest wait, in seconds, until airlines whose endpoints work have no message left."""
_LOOK_S = 0.02

AROUND_S = WARM_UP_S + DRAIN_S + 1.0
"""Roughly, the seconds of all steps before, between and after the two halves."""


class Play:
    """One run of the demonstration. Await `run` once; then the attributes hold the results.

    Attributes:
        topics: one for each airline, and the topic of notices.
        spans: times in which flights were published, in the calm and in the troubled half, without the first second of
            each.
        others: part of the processors that other programs took, in each half, 0 to 1.
        left: messages in the store after the host has stopped.
    """

    def __init__(
        self, plan: Scenario, app: App, pusher: Pusher, receivers: Receivers, screen: Screen, noted: Notices
    ) -> None:
        self._plan = plan
        self._app = app
        self._receivers = receivers
        self._screen = screen
        self._pusher = pusher
        self._noted = noted
        self._tally = Tally([t.carrier for t in plan.tenants], pusher)
        self._traffic = Traffic(app.producer, self._tally)
        self._started = time.monotonic()
        self._title = self._notice = ""
        self._troubled = False
        self.topics: list[Topic] = []
        self.spans: list[Span] = []
        self.others: list[float] = []
        self.left = Leftovers(frozenset(), frozenset(), frozenset())

    async def run(self) -> None:
        """Play both halves and stop cleanly. A cancelled run stops at once, as a crash of the host would."""
        topics = [self._topic(t.carrier, t.limit) for t in self._plan.tenants]
        self.topics = await self._app.admin.create([*topics, notices.topic(self._receivers.url(TOPIC))])
        self._app.handlers.bind(TOPIC, self._tell)
        self._app.handlers.bind("*", self._tally)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._app.run())
            drawing = group.create_task(self._draw())
            await self._steps()
            self._app.stop()
            drawing.cancel()
        self._enter("5/5 Proof", "Reading the trail, the receivers' own logs and the messages left in the store.")
        self.draw()
        self.left = await leftovers.find(self._app, self.topics)

    @property
    def ids(self) -> dict[str, str]:
        """Id to carrier, of every message whose publish returned; a notice has its topic in place of a carrier."""
        return self._traffic.ids | dict.fromkeys(self._noted.ids, TOPIC)

    async def _tell(self, message: Message) -> None:
        await self._noted.deliver(message, self._pusher)

    def _topic(self, carrier: str, limit: int) -> Topic:
        options = TopicOptions(
            max_attempts=MAX_ATTEMPTS, backoff_s=BACKOFF_S, attributes={"push.url": self._receivers.url(carrier)}
        )
        return split(Topic(carrier, limit, group_qps=GROUP_QPS, priorities=PRIORITIES, options=options))

    # --------------------------------------------------------------------------------------------------------- steps

    async def _steps(self) -> None:
        self._enter("1/5 Warm-up", "The host takes over the queues; every limit counts from the next full second.")
        await asyncio.sleep(0)  # the app makes the host when its task first runs
        assert self._app.host is not None
        await self._app.host.running.wait()
        garbage_collection.shorten_pauses()
        await asyncio.sleep(WARM_UP_S)
        self._enter(
            "2/5 Calm", "Every airline is below its limit and every endpoint answers at once: look at their waits."
        )
        await self._half()
        carriers = [t.carrier for t in self._plan.tenants]
        await self._quiet(carriers)
        for carrier in TROUBLES:
            url = self._receivers.url(carrier + TROUBLE_SUFFIX)
            await self._app.admin.update(carrier, attributes={"push.url": url})
        await asyncio.sleep(CATALOG_POLL_S * 1.2)
        self._troubled = True
        self._enter(
            "3/5 Trouble",
            f"The same flights again, but {FLOODED} gets {FLOOD_FACTOR} times its limit ({self._plan.flood_per_s:,}/s) "
            "and three endpoints go bad. Their backlogs pile up in their own queues; the waits of the others stay.",
        )
        await self._half(self._traffic.flood(self._plan.flood, self._plan.flood_per_s, self._plan.half_s))
        self._enter("4/5 Drain", "Nothing more is published. Messages for the flooded and dead endpoints stay queued.")
        await self._quiet([c for c in carriers if c != FLOODED and TROUBLES.get(c) != "down"])

    async def _half(self, *beside: Coroutine[None, None, None]) -> None:
        before, from_us = Usage.now(), time.time_ns() // 1000
        async with asyncio.TaskGroup() as group:
            for other in beside:
                group.create_task(other)
            group.create_task(self._traffic.replay(self._plan.window, self._plan.speed))
        self.spans.append(Span(from_us + int(SETTLE_S * 1e6), time.time_ns() // 1000))
        self.others.append(taken_by_others(before, Usage.now()))

    async def _quiet(self, carriers: Sequence[str]) -> None:
        """Wait until no message of these carriers waits or is in flight, but at most `DRAIN_S` seconds."""
        deadline = time.monotonic() + DRAIN_S
        while self._tally.busy(carriers) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    # ------------------------------------------------------------------------------------------------------- picture

    def _enter(self, title: str, notice: str) -> None:
        self._title, self._notice = title, notice

    async def _draw(self) -> None:
        while True:
            self.draw()
            await asyncio.sleep(FRAME_S)

    def draw(self) -> None:
        """Show the figures of this moment."""
        second = int(self._app.clock.now())
        rows = []
        for tenant in self._tally.tenants.values():
            tenant.turn(second)
            of_tenant = (tenant.rate, tenant.in_flight, [*tenant.backlog], tenant.retries, tenant.dead, tenant.wait_us)
            rows.append(Row(*of_tenant))
        elapsed_s = time.monotonic() - self._started
        told = notices.telling(self._noted.told)
        self._screen.show(Frame(self._title, self._notice, elapsed_s, self._troubled, rows, told))


def build_pusher(app: App) -> Pusher:
    """Return a pusher that takes each endpoint from the host's topics, so that a change counts from the next call."""

    def topic_of(name: str) -> Topic | None:
        return None if app.host is None else app.host.ownership.topics.get(name)

    return Pusher(Endpoints(topic_of), clock=app.clock, addresses=AddressFilter(("127.0.0.0/8",)))

"""The publishers of the flights, as they depart, and of the flood. They keep the published ids for the proof."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

from emq.producer import Producer
from emq_demo import flights
from emq_demo.flights import Flight
from emq_demo.scenario import PRIORITIES
from emq_demo.tally import Tally

TICK_S = 0.01
"""Seconds between two looks for departures. Flights of one tick are published one by one but share a round trip."""
FLOOD_TICK_S = 0.1


class Traffic:
    """Publishes to the tenants' topics.

    Attributes:
        ids: id to carrier, of every message whose publish returned.
    """

    def __init__(self, producer: Producer, tally: Tally) -> None:
        self._producer = producer
        self._tally = tally
        self.ids: dict[str, str] = {}

    async def replay(self, window: Sequence[Flight], speed: float) -> None:
        """Publish each flight at its time of departure, and return when all are in the store.

        If this process does not keep up, it publishes flights late but leaves none out.

        Args:
            window: sorted by scheduled departure.
            speed: seconds of schedule that pass in one second of replay; 3600 plays an hour in a second.
        """
        now = asyncio.get_running_loop().time
        started = now()
        async with asyncio.TaskGroup() as publishing:
            for flight in window:
                due = started + (flight.scheduled_s - window[0].scheduled_s) / speed
                while now() < due:  # noqa: ASYNC110
                    await asyncio.sleep(TICK_S)
                publishing.create_task(self._publish(flight))

    async def flood(self, source: Sequence[Flight], per_s: float, seconds: float) -> None:
        """Publish `per_s` flights a second for `seconds`; begin again with the first of `source` after the last."""
        endless = itertools.cycle(source)
        started, sent = time.monotonic(), 0
        while (elapsed := time.monotonic() - started) < seconds:
            due = int(elapsed * per_s) - sent
            sent += due
            await self._publish_many(itertools.islice(endless, due))
            await asyncio.sleep(FLOOD_TICK_S)

    async def _publish(self, flight: Flight) -> None:
        priority = flights.priority(flight)
        self._tally.published(flight.carrier, PRIORITIES.index(priority), 1)
        id_ = await self._producer.publish(flight.carrier, flights.payload(flight), priority=priority)
        self.ids[id_] = flight.carrier

    async def _publish_many(self, batch: Iterator[Flight]) -> None:
        payloads: dict[tuple[str, str], list[bytes]] = defaultdict(list)
        for flight in batch:
            payloads[flight.carrier, flights.priority(flight)].append(flights.payload(flight))
        for (carrier, priority), bodies in payloads.items():
            self._tally.published(carrier, PRIORITIES.index(priority), len(bodies))
            ids = await self._producer.publish_many(carrier, bodies, priority=priority)
            self.ids.update(dict.fromkeys(ids, carrier))

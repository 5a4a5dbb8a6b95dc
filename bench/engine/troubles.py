"""Waits and deliveries of good tenants while others' HTTP endpoints are in trouble, beside calm runs of the same load.

Each tenant is a topic that is pushed to an endpoint with an address of its own, see `bench.support.endpoints`. The host
runs with its circuit breakers and its adaptive rates on. Each round has two halves in the same process. In the calm
half all endpoints are good; in the other half some are in one kind of trouble. Both halves publish the same messages,
but for a flood, which only the second half has.

A *wait* is the time from a message's due time to its start, a *delivery* the time from its due time to the answer of
its endpoint.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import emq
from bench.engine import victims
from bench.support.endpoints import Arrival, Endpoints, Kind
from bench.support.pacing import steadily
from bench.support.stage import Stage
from emq.host import garbage_collection
from emq.runtime.errors import InvalidSettings
from emq.storage.message import Message
from emq.topics.model import Topic, TopicOptions
from emq_push.addresses import AddressFilter
from emq_push.endpoint import Endpoints as KnownEndpoints
from emq_push.pusher import Pusher, Reports
from emq_push.resolver import build_resolver

HERE = "127.0.0.0/8"
SECRET = "whsec_" + "QmVuY2htYXJrc0RvTm90S2VlcFNlY3JldHM="
QPS = 20.0
"""Of each tenant."""
SENT_QPS = 2.0
"""Messages a second to each tenant that is in trouble."""
FLOOD_FACTOR = 100
RATE_PER_S = 500.0
"""Messages a second to all good tenants together; two cores carry this and as much to the others with ease."""
SETTLE_S = 2.0
LONGEST_S = 40.0
"""Most seconds to wait until the messages of a half are delivered, or those of deleted topics have ended."""


class Trouble(NamedTuple):
    """Attributes:
    kind: what the endpoints do.
    tenants: number of tenants in trouble.
    flood: messages a second to each of them; 0 for as many as in the calm half.
    """

    kind: Kind
    tenants: int
    flood: float = 0.0


NAMES = ("flood", "hang", "refuse", "huge", "drip", "names", "crowd")


def chosen(text: str, few: int, crowd: int) -> dict[str, Trouble]:
    """Return the troubles of that text by name: `all`, or some of `NAMES` with commas between them.

    Args:
        few: tenants in most troubles.
        crowd: tenants that hang at once in the trouble `crowd`.
    """
    names = NAMES if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in NAMES]:
        raise InvalidSettings(f"trouble {unknown[0]!r} is not known; use all, or some of {', '.join(NAMES)}")
    known = {
        "flood": Trouble("good", 1, FLOOD_FACTOR * QPS),
        "hang": Trouble("hang", few),
        "refuse": Trouble("refuse", few),
        "huge": Trouble("huge", few),
        "drip": Trouble("drip", few),
        "names": Trouble("silent-names", few),
        "crowd": Trouble("hang", crowd),
    }
    return {name: known[name] for name in names}


class Load(NamedTuple):
    """What both halves of a round publish.

    Attributes:
        good: number of good tenants.
        rate_per_s: messages a second of all good tenants together.
        others: topics that are in trouble in the second half.
        others_qps: messages a second of each of these.
        seconds: length of the half.
    """

    good: int
    rate_per_s: float
    others: list[str]
    others_qps: float
    seconds: float


class Times:
    """When messages started and when they were delivered, by id; `time.monotonic()`."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}
        self.delivered: dict[str, float] = {}

    def around(self, push: Pusher) -> Callable[[Message], Any]:
        async def watched(message: Message) -> None:
            if message.attempt == 1:
                self.started[message.id] = time.monotonic()
            await push(message)
            self.delivered[message.id] = time.monotonic()

        return watched


async def publisher(url: str, database: str, load: Load, seed: int) -> dict[str, float]:
    """Publish the messages of all tenants; see `victims.publish`."""

    async def noise(app: emq.App) -> None:
        async for due in steadily(load.others_qps, load.seconds, max(0.1, 1 / load.others_qps)):
            for topic in load.others:
                await app.publish_many(topic, [b"x" * 100] * due)

    arrivals = victims.arrivals(load.good, load.rate_per_s, load.seconds, seed)
    return await victims.publish(url, database, arrivals, noise)


@asynccontextmanager
async def pushing(app: emq.App, times: Times, name_server: str) -> AsyncIterator[None]:
    """Push all messages of `app`, which is not open yet, as `emq host` does, and note their times."""
    if importlib.util.find_spec("aiodns") is None:
        raise InvalidSettings("bench isolation --http asks a name server of its own, which needs the package aiodns")

    def topic_of(name: str) -> Topic | None:
        return None if app.host is None else app.host.ownership.topics.get(name)

    async with Pusher(
        KnownEndpoints(topic_of),
        clock=app.clock,
        addresses=AddressFilter((HERE,)),
        reports=Reports(lambda: None if app.host is None else app.host.throttles),
        resolver=build_resolver([name_server]),
    ) as pusher:
        app.handlers.bind("*", times.around(pusher))
        yield


class Halves:
    """Runs the halves of rounds over one host, and keeps what they found."""

    def __init__(self, stage: Stage, app: emq.App, endpoints: Endpoints, times: Times) -> None:
        self._stage = stage
        self._app = app
        self._endpoints = endpoints
        self._times = times
        self.published: dict[str, str] = {}  # all messages of good tenants: id to where they were published
        self.most_in_flight = 0

    async def run(self, name: str, load: Load, kind: str, others: int, seed: int) -> tuple[list[float], list[float]]:
        """Return the waits and the deliveries of the good tenants' messages, in milliseconds.

        Args:
            kind: beginning of the names of the other tenants, `others` of them.
        """
        host = self._app.host
        assert host is not None
        topics = [_topic(self._endpoints.named_url(f"{kind}-{i}"), f"{name}-{i}") for i in range(others)]
        await self._app.admin.create(topics)
        await asyncio.sleep(SETTLE_S)
        load = load._replace(others=[topic.name for topic in topics])
        began = await self._stage.elsewhere(publisher, self._stage.url, self._stage.database, load, seed)
        self.published.update(dict.fromkeys(began, name))
        self.most_in_flight = max(self.most_in_flight, host.work.dispatcher.flight.count)
        await _until(lambda: began.keys() <= self._times.delivered.keys())
        for topic in topics:
            await self._app.admin.delete(topic.name, force=True)
        await _until(lambda: host.work.dispatcher.flight.count == 0)
        return victims.waits_ms(began, self._times.started), victims.waits_ms(began, self._times.delivered)


def _topic(url: str, name: str) -> Topic:
    return Topic(name, QPS, options=TopicOptions(attributes={"push.url": url, "push.secret": SECRET}))


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_S
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.1)


def missed(published: dict[str, str], arrivals: list[Arrival]) -> int:
    """Return how many published messages never arrived at their endpoints."""
    return len(published.keys() - {arrival.id for arrival in arrivals})


async def run(
    stage: Stage, chosen: dict[str, Trouble], *, of: int, rate: float, seconds: float, rounds: int
) -> dict[str, Any]:
    good = of - max(trouble.tenants for trouble in chosen.values())
    kinds: dict[str, Kind] = {f"tenant-{i}": "good" for i in range(good)}
    kinds |= {f"calm-{i}": "good" for i in range(max(trouble.tenants for trouble in chosen.values()))}
    kinds |= {f"{name}-{i}": trouble.kind for name, trouble in chosen.items() for i in range(trouble.tenants)}
    logging.getLogger("emq.dispatch.failure_log").setLevel(logging.ERROR)  # failures are what this is about
    times, figures = Times(), dict[str, Any]()
    with Endpoints(kinds) as endpoints:
        app = stage.app()
        async with pushing(app, times, endpoints.name_server), app:
            await app.admin.create([_topic(endpoints.named_url(f"tenant-{i}"), f"tenant-{i}") for i in range(good)])
            async with app.running():
                garbage_collection.shorten_pauses()  # as `emq host` does
                halves = Halves(stage, app, endpoints, times)
                for name, trouble in chosen.items():
                    figures |= await _rounds(stage, halves, name, trouble, Load(good, rate, [], 0.0, seconds), rounds)
        lost = missed(halves.published, endpoints.stop())
    return _summary(figures, chosen) | {"undelivered": lost, "most_in_flight": halves.most_in_flight}


async def _rounds(stage: Stage, halves: Halves, name: str, trouble: Trouble, load: Load, rounds: int) -> dict[str, Any]:
    """Run the rounds with one trouble; return its figures, named after it."""
    waits, deliveries = victims.Waits(), victims.Waits()
    calm = QPS if trouble.flood else SENT_QPS
    for i in range(rounds):
        for is_troubled in (False, True):
            stage.say(
                f"{name}, round {i + 1} of {rounds}, {load.seconds:g} s {'in trouble' if is_troubled else 'calm'}"
            )
            half = load._replace(others_qps=trouble.flood if is_troubled and trouble.flood else calm)
            kind = name if is_troubled else "calm"
            waited, delivered = await halves.run(f"{kind}-{name}-{i}", half, kind, trouble.tenants, i)
            waits.add(is_troubled, waited)
            deliveries.add(is_troubled, delivered)
    return _figures(name, waits.compared(), deliveries.compared())


def _figures(name: str, waits: dict[str, Any], deliveries: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{name}_p99_ratio": waits["victim_p99_ratio"],
        f"{name}_p99_ratios": f"{waits['ratio_min']:.2f}-{waits['ratio_max']:.2f}",
        f"{name}_p99_ms": waits["p99_with_ms"],
        f"{name}_calm_p99_ms": waits["p99_without_ms"],
        f"{name}_delivery_p99_ratio": deliveries["victim_p99_ratio"],
        f"{name}_delivery_p99_ms": deliveries["p99_with_ms"],
        f"{name}_calm_delivery_p99_ms": deliveries["p99_without_ms"],
    }


def _summary(figures: dict[str, Any], chosen: dict[str, Trouble]) -> dict[str, Any]:
    """Put the worst ratio of all troubles before the figures of each."""
    return {
        "victim_p99_ratio": max(figures[f"{name}_p99_ratio"] for name in chosen),
        "delivery_p99_ratio": max(figures[f"{name}_delivery_p99_ratio"] for name in chosen),
    } | figures

"""Checks the caps of tenants where they are felt: at their HTTP endpoints, also while the host is restarted.

Some tenants have one endpoint, others four that share the tenant's qps as their budget.

The endpoints count requests in two ways. By `webhook-timestamp`, the second of the host's clock in which an attempt
started: this is the second for which the cap is promised, and it counts as an overshoot. By arrival, in the seconds of
the endpoints' own clock: a request that leaves at the end of a second may arrive in the next one, beside those of the
next one. So this count may be above the cap by what was on its way, and it is shown, but not judged.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.engine.overshoot import QUOTAS, window_overshoot
from bench.support.backlog import fill
from bench.support.endpoints import Arrival, Endpoints
from bench.support.stage import Stage
from emq.host import garbage_collection
from emq.quota.counter import MICRO
from emq.runtime.settings import load
from emq.topics.model import Topic, TopicOptions
from emq_push.cli.pushing import with_push

HERE = "127.0.0.0/8"
SECRET = "whsec_" + "QmVuY2htYXJrc0RvTm90S2VlcFNlY3JldHM="
SHARED_QPS = 20.0
ENDPOINTS = 4
"""Endpoints of a tenant with a budget; together they may start twice the tenant's qps."""
RUNS = 3
"""Hosts that run one after the other; each takes the groups over from the one before."""


class Cap(NamedTuple):
    """At most `qps` starts a second of all `topics` together."""

    topics: frozenset[str]
    qps: float


class Tenants(NamedTuple):
    """Attributes:
    topics: those of all endpoints.
    budgets: those of the tenants whose endpoints share a budget; nothing is pushed to them.
    caps: what the endpoints must find.
    """

    topics: list[Topic]
    budgets: list[Topic]
    caps: list[Cap]


def endpoints_of(tenants: int) -> list[str]:
    """Return the names of the endpoints: every fifth tenant has several, the others have one."""
    return [
        f"tenant-{i}.{n}" if i % 5 == 0 else f"tenant-{i}"
        for i in range(tenants)
        for n in range(ENDPOINTS if i % 5 == 0 else 1)
    ]


def tenants_with(urls: Mapping[str, str]) -> Tenants:
    """Return the topics for endpoints with these URLs, by name."""
    topics, budgets, caps = [], dict[str, Topic](), []
    quotas = itertools.cycle(QUOTAS)
    for name, url in urls.items():
        budget = name.partition(".")[0] if "." in name else None
        attributes = {"push.url": url, "push.secret": SECRET}
        qps = next(quotas) if budget is None else 2 * SHARED_QPS / ENDPOINTS
        options = TopicOptions(attributes=attributes, budget=budget)
        topics.append(Topic(name, qps, priorities=("high", "low"), options=options))
        caps.append(Cap(frozenset((name,)), qps))
        if budget is not None:
            budgets[budget] = Topic(budget, SHARED_QPS)
    for budget in budgets:
        mine = frozenset(topic.name for topic in topics if topic.options.budget == budget)
        caps.append(Cap(mine, SHARED_QPS))
    return Tenants(topics, list(budgets.values()), caps)


def overshoot(caps: Sequence[Cap], times_us: Mapping[str, Sequence[int]]) -> int:
    """Return the number of requests beyond the caps, summed over all aligned seconds and all caps."""
    return sum(window_overshoot([us for name in cap.topics for us in times_us.get(name, ())], cap.qps) for cap in caps)


def stamped(arrivals: Sequence[Arrival]) -> dict[str, list[int]]:
    """Return the starts of each topic's requests, to the second, in microseconds."""
    found: dict[str, list[int]] = defaultdict(list)
    for arrival in arrivals:
        found[arrival.tenant].append(arrival.stamp_s * MICRO)
    return found


def arrived(arrivals: Sequence[Arrival]) -> dict[str, list[int]]:
    """Return the arrivals of each topic's requests, in microseconds."""
    found: dict[str, list[int]] = defaultdict(list)
    for arrival in arrivals:
        found[arrival.tenant].append(arrival.arrived_us)
    return found


def used(caps: Sequence[Cap], starts_us: Mapping[str, Sequence[int]], spans: Sequence[tuple[int, int]]) -> float:
    """Return the part of the caps that was used within the spans (first second, second after the last one)."""
    started = possible = 0.0
    for cap in caps:
        mine = [us for name in cap.topics for us in starts_us.get(name, ())]
        for begin, end in spans:
            started += sum(begin * MICRO <= us < end * MICRO for us in mine)
            possible += cap.qps * (end - begin)
    return started / possible


async def consume(stage: Stage, seconds: int) -> tuple[int, int]:
    """Push with a host of its own; return the whole seconds in which it ran at full speed."""
    app = stage.app(options=load(environ={}, push_allow=HERE))
    async with with_push(app), app, app.running():
        garbage_collection.shorten_pauses()  # as `emq host` does
        begin = math.ceil(app.clock.now()) + 1
        await asyncio.sleep(begin + seconds - app.clock.now())
    return begin, begin + seconds


def possible(tenants: Tenants) -> list[Cap]:
    """Return the caps that tell what all topics can start: those of budgets in place of their topics' own."""
    shared = {topic.name for topic in tenants.topics if topic.options.budget is not None}
    return [cap for cap in tenants.caps if len(cap.topics) > 1 or not cap.topics & shared]


async def run(stage: Stage, *, tenants: int, seconds: int) -> dict[str, Any]:
    names = endpoints_of(tenants)
    with Endpoints(dict.fromkeys(names, "good"), work_s=0.0) as endpoints:
        made = tenants_with({name: endpoints.url(name) for name in names})
        async with stage.app() as app:
            topics = (await app.admin.create([*made.budgets, *made.topics]))[len(made.budgets) :]
        stage.say(f"filling {tenants:,} tenants with more than {RUNS} times {seconds} seconds of their quota")
        for qps in {topic.qps for topic in topics}:
            some = [topic for topic in topics if topic.qps == qps]
            await stage.elsewhere(fill, stage.url, some, math.ceil(qps * RUNS * (seconds + 15) / 2))
        spans = []
        for i in range(RUNS):
            stage.say(f"host {i + 1} of {RUNS}, for {seconds} s")
            spans.append(await consume(stage, seconds))
        arrivals = endpoints.stop()
    starts_us = stamped(arrivals)
    return {
        "overshoot": overshoot(made.caps, starts_us),
        "arrived_above": overshoot(made.caps, arrived(arrivals)),
        "utilisation": used(possible(made), starts_us, spans),
        "twice": len(arrivals) - len({arrival.id for arrival in arrivals}),
        "restarts": RUNS - 1,
        "requests": len(arrivals),
    }

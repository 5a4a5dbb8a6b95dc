"""Requests a second of one host that pushes to local endpoints, beside a bare aiohttp loop that sends the same.

Both sign each request and keep connections alive; the receivers run in a process of their own. The bare loop has
aiohttp's own client, the host one that does less for each request (`emq_push.wire`). The bare loop sends as many
requests at a time as the host had in flight on average, reads its messages from memory, and settles nothing. It runs
after each host, so that both meet the same machine. Both run with the garbage collector as `emq host` sets it; with
Python's own settings a request costs both sides at least half as much again. On a busy machine look at the ratio of the
CPU.
"""

from __future__ import annotations

import asyncio
import base64
import statistics
import time
from collections.abc import Iterable
from typing import Any

import aiohttp

from bench.engine.waiting import LOOK_S, Cost, cost, in_tasks, made
from bench.support.backlog import fill
from bench.support.figures import Benchmark, Figure
from bench.support.stage import UNLIMITED, Stage, Stopwatch
from emq.host import garbage_collection
from emq.runtime import plurals
from emq.runtime.settings import load
from emq.storage.message import Message
from emq.topics.model import Topic, TopicOptions
from emq_demo.receivers import Receivers
from emq_push import headers
from emq_push.addresses import AddressFilter
from emq_push.cli.pushing import with_push
from emq_push.endpoint import Endpoint
from emq_push.files import most_connections
from emq_push.http import build_connector

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
HERE = "127.0.0.0/8"
WARM = 0.25
"""Part of a host's backlog after which the watch starts: most connections are open then, as the bare loop's are when
its watch starts."""


def endpoints(receivers: Receivers, names: Iterable[str]) -> list[Topic]:
    """Return a topic for each tenant, without a quota that the benchmark reaches, and with an endpoint."""
    return [
        Topic(
            name,
            UNLIMITED,
            group_qps=UNLIMITED,
            priorities=("only",),
            options=TopicOptions(attributes={"push.url": receivers.url(name), "push.secret": SECRET}),
        )
        for name in names
    ]


async def bare(topics: list[Topic], count: int, in_flight: int) -> Cost:
    """Send `count` messages of all topics in turn, `in_flight` at a time; return the cost."""
    known = {topic.name: Endpoint.from_topic(topic) for topic in topics}
    messages = made(topics, count)

    async with aiohttp.ClientSession(
        connector=build_connector(AddressFilter((HERE,))), cookie_jar=aiohttp.DummyCookieJar()
    ) as session:

        async def send(message: Message) -> None:
            endpoint = known[message.topic]
            assert endpoint is not None
            sent = headers.of_delivery(endpoint, message, int(time.time()))
            async with session.post(endpoint.url, data=message.payload, headers=sent, allow_redirects=False) as answer:
                assert answer.status == 204, answer.status

        await in_tasks(send, made(topics, in_flight), in_flight)  # opens the connections
        watch = Stopwatch()
        await in_tasks(send, messages, in_flight)
        return cost(watch, count)


async def hosted(stage: Stage, topics: list[Topic], per_tenant: int, *, records: bool) -> tuple[Cost, int]:
    """Push a backlog with a host.

    Returns:
        The cost of the last `1 - WARM` of the messages, and the average number of messages in flight meanwhile.
    """
    total = await stage.elsewhere(fill, stage.url, topics, per_tenant)
    app = stage.app(options=load(environ={}, push_allow=HERE, push_attempts=records))
    async with with_push(app), app, app.running() as host:
        garbage_collection.shorten_pauses()  # as `emq host` does; it holds for the bare loop as well
        endings, flight = host.work.endings, host.work.dispatcher.flight
        while endings.succeeded < total * WARM:
            await asyncio.sleep(LOOK_S)
        before, watch, in_flight = endings.succeeded, Stopwatch(), [1]
        while endings.succeeded < total:
            await asyncio.sleep(LOOK_S)
            in_flight.append(flight.count)
        found = cost(watch, total - before)
        assert not endings.failed, f"{plurals.count(endings.failed, 'delivery', 'deliveries')} failed"
        return found, round(statistics.mean(in_flight))


async def run(stage: Stage, *, tenants: int, messages: int, rounds: int, no_records: bool) -> dict[str, Any]:
    names = [f"tenant-{i}" for i in range(tenants)]
    per_tenant = max(1, messages // tenants)
    bares, hosts, in_flight = [], [], []
    with Receivers(dict.fromkeys(names, "fast")) as receivers:
        async with stage.app() as app:
            topics = await app.admin.create(endpoints(receivers, names))
        for i in range(rounds):
            stage.say(
                f"round {i + 1} of {rounds}: {plurals.count(per_tenant, 'message')} to each of "
                f"{plurals.count(tenants, 'tenant')}"
            )
            found, most = await hosted(stage, topics, per_tenant, records=not no_records)
            hosts.append(found)
            in_flight.append(min(most, most_connections()))
            bares.append(await bare(topics, per_tenant * tenants, in_flight[-1]))
    return {
        "requests_per_s": round(1e6 / statistics.median(h.us for h in hosts)),
        "ratio": statistics.median(b.us / h.us for b, h in zip(bares, hosts, strict=True)),
        "cpu_ratio": statistics.median(b.cpu_us / h.cpu_us for b, h in zip(bares, hosts, strict=True)),
        "cpu_us": statistics.median(h.cpu_us for h in hosts),
        "bare_cpu_us": statistics.median(b.cpu_us for b in bares),
        "in_flight": max(in_flight),
    }


BENCHMARK = Benchmark(
    run,
    options=(
        ("tenants", 200, "tenants, each with an endpoint of its own"),
        ("messages", 40_000, "backlog in all, for each round"),
        ("rounds", 3, "rounds; the median counts"),
        ("no-records", False, "keep no records of attempts in the database, as with push_attempts = false"),
    ),
    figures=(Figure("ratio", ">=", 0.8),),
)

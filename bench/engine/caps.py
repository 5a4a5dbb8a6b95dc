"""Check that many groups at once with mixed quotas, all with a backlog, reach their caps and never exceed them.

`--http` pushes to endpoints, which count; see `bench.engine.pushed_caps`.
"""

from __future__ import annotations

import asyncio
import math
import random
from array import array
from typing import Any

from bench.engine import pushed_caps
from bench.engine.overshoot import QUOTAS, smooth_overshoot, window_overshoot
from bench.support.backlog import fill
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage, Stopwatch
from emq.quota.counter import MICRO
from emq.runtime import plurals
from emq.storage.message import Message
from emq.topics.model import Topic, TopicOptions


def mixed_topics(groups: int) -> list[Topic]:
    """Return topics of one group each, with every quota in turn; every other topic is smooth."""
    random_ = random.Random(1)
    return [
        Topic(
            f"caps-{i}",
            random_.choice(QUOTAS),
            priorities=("high", "low"),
            options=TopicOptions(pacing="smooth" if i % 2 else "window"),
        )
        for i in range(groups)
    ]


async def run(stage: Stage, *, groups: int, seconds: int, http: bool, tenants: int) -> dict[str, Any]:
    if http:
        return await pushed_caps.run(stage, tenants=tenants, seconds=seconds)
    starts: dict[str, array[int]] = {}

    async def handle(message: Message) -> None:
        starts[message.topic].append(message.started_us)

    async with stage.app() as app:
        topics = await app.admin.create(mixed_topics(groups))
        stage.say(f"filling {plurals.count(groups, 'group')} with {seconds + 10} seconds of their quota")
        for quota in QUOTAS:
            some = [t for t in topics if t.qps == quota]
            await stage.elsewhere(fill, stage.url, some, math.ceil(quota * (seconds + 10) / 2) + 2)
        starts.update((t.name, array("q")) for t in topics)
        app.handlers.bind("*", handle)
        async with app.running():
            # The measurement covers whole seconds, from the second full one on.
            begin = math.ceil(app.clock.now()) + 1
            await asyncio.sleep(begin - app.clock.now())
            stage.say(f"running for {seconds} s")
            watch, server_cpu_s = Stopwatch(), stage.server_cpu_s()
            await asyncio.sleep(begin + seconds - app.clock.now())
            cpu_percent = watch.cpu_s / watch.wall_s * 100
            server_cpu_percent = (stage.server_cpu_s() - server_cpu_s) / watch.wall_s * 100

    overshoot = smooth = 0
    started = {"window": 0.0, "smooth": 0.0}
    quota_sum = {"window": 0.0, "smooth": 0.0}
    worst = 1.0
    for topic in topics:
        pacing, mine = topic.options.pacing, starts[topic.name]
        within = sum(begin * MICRO <= us < (begin + seconds) * MICRO for us in mine)
        possible = sum(topic.division.total.allowance(second) for second in range(begin, begin + seconds))
        started[pacing] += within
        quota_sum[pacing] += possible if pacing == "window" else topic.qps * seconds
        worst = min(worst, within / possible) if pacing == "window" else worst
        if pacing == "window":
            overshoot += window_overshoot(mine, topic.division.total)
        else:
            smooth = max(smooth, smooth_overshoot(mine, topic.qps))
    return {
        "overshoot": overshoot,
        "smooth_overshoot": smooth,
        "utilisation": sum(started.values()) / sum(quota_sum.values()),
        "window_utilisation": started["window"] / quota_sum["window"],
        "window_worst_group": worst,
        "smooth_utilisation": started["smooth"] / quota_sum["smooth"],
        "cpu_percent": cpu_percent,
        "server_cpu_percent": server_cpu_percent,
        "started_per_s": sum(started.values()) / seconds,
    }


BENCHMARK = Benchmark(
    run,
    options=(
        ("groups", 3_000, "groups"),
        ("seconds", 30, "seconds of watching; with --http, of each host"),
        ("http", False, "push to HTTP endpoints, which count, while hosts take turns"),
        ("tenants", 100, "with --http: tenants, each with an endpoint of its own"),
    ),
    figures=(
        Figure("overshoot", "==", 0),
        Figure("smooth_overshoot", "==", 0),
        Figure("utilisation", ">=", 0.99),
        Figure("smooth_utilisation", ">=", 0.99),
        Figure("twice", "==", 0),
    ),
)

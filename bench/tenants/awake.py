"""What an awake topic costs its host: memory, and CPU while nothing happens."""

from __future__ import annotations

from typing import Any

from bench.support.stage import Stage
from bench.tenants import family
from bench.tenants.watched_host import watched

OPTIONS = (
    ("topics", 100_000, 500, "topics, all awake on one host"),
    ("idle-seconds", 20.0, 1.0, "seconds of watching an idle host"),
)


async def run(stage: Stage, *, topics: int, idle_seconds: float, patience: float) -> dict[str, Any]:
    async with stage.app() as app:
        await family.create(app, most=topics, idle_s=None)
    with watched(stage, patience) as host:
        stage.say("starting a host without topics")
        await host.start()
        host.must_have(0)
        bare_cpu_percent = await host.idle_cpu_percent(idle_seconds)
        bare = host.rss_bytes
        await host.stop()
        await family.make(stage, topics)
        stage.say("starting the host")
        await host.start(topics)
        host.must_have(topics)
        stage.say(f"idle for {idle_seconds:g} s")
        cpu_percent = await host.idle_cpu_percent(idle_seconds)
        rss = host.rss_bytes
        await host.stop()
    return {
        "kb_a_topic": (rss - bare) / topics / 1e3,
        "idle_cpu_percent": cpu_percent,
        "idle_cpu_percent_without_topics": bare_cpu_percent,
        "host_mb": rss / 1e6,
        "host_mb_without_topics": bare / 1e6,
        "start_s": host.start_s,
    }

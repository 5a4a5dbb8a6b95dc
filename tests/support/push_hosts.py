"""Snapshots as hosts save them, made by hand for tests of what the push service says of hosts."""

from __future__ import annotations

from typing import Any

import msgspec

from emq import App
from emq.database import host_stats
from emq.host import statistics
from emq.host.statistics import ThrottledTopic, TopicStatistics, WatchedTopic


def topic(
    name: str, *, in_flight: int = 0, started_per_s: float = 0.0, qps: float = 10.0, held_by: str = ""
) -> TopicStatistics:
    return TopicStatistics(name, qps, "active", 1, started_per_s, in_flight, {}, 0, held_by=held_by)


async def save(
    app: App,
    *busiest: TopicStatistics,
    throttled: tuple[ThrottledTopic, ...] = (),
    watched: tuple[WatchedTopic, ...] = (),
    host: str = "h1",
    age_s: float = 0.0,
    **more: Any,
) -> None:
    """Save the snapshot of a host that names all its topics."""
    now = app.clock.now() - age_s
    snapshot = msgspec.structs.replace(
        statistics.HostStatistics(host, now, store_unreachable=""),
        store_unreachable=None,
        busiest=busiest,
        topics=len(busiest),
        throttled=throttled,
        closed=sum(t.rate is None for t in throttled),
        limited=sum(t.rate is not None for t in throttled),
        watched=watched,
        **more,
    )
    text = msgspec.json.encode(snapshot).decode()
    await host_stats.save(app.database, str(app.settings.environment), host, text, int(now * 1000))

"""Names that are touched once and never again: what is left of them once they sleep."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Any

import emq
from bench.cluster.crew import InvalidRun
from bench.support.stage import Stage
from bench.tenants import family, starts, traces
from bench.tenants.waits import Waits
from bench.tenants.watched_host import CALM_S, WatchedHost, watched
from emq.runtime import plurals

OPTIONS = (
    ("names", 1_000_000, 500, "names, each of which gets one message"),
    ("batch", 1_000, 100, "names that are touched at a time"),
    ("at-once", 50_000, 300, "most topics of the family at a time (max_topics)"),
    ("idle-s", 5.0, 5.0, "seconds after which an idle topic sleeps (idle_s)"),
    ("rows-s", 700.0, 0.0, "most seconds to wait for the last row to go, after all topics sleep"),
)

LOOK_S, ROWS_LOOK_S = 0.5, 5.0


async def publisher(url: str, database: str, names: int, batch: int, at_once: int, waits: Waits) -> None:
    """Touch all names, batch by batch; before each batch, wait until the family has room for it.

    Raises:
        InvalidRun: as `Waits.until`.
    """
    async with emq.App(url, database=database) as app:
        for start in range(0, names, batch):
            numbers = range(start, min(names, start + batch))
            most = at_once - len(numbers)
            await waits.until(functools.partial(_has_at_most, app, most), LOOK_S, "topics slept")
            await family.publish(app, numbers)


async def _has_at_most(app: emq.App, topics: int) -> bool:
    return await _live(app) <= topics


async def _live(app: emq.App) -> int:
    return (await app.families.get(family.NAME)).live


class Sleepers:
    """Waits for the topics to sleep, and keeps the most memory that the host had meanwhile."""

    def __init__(self, app: emq.App, host: WatchedHost) -> None:
        self._app = app
        self._host = host
        self.most_bytes = host.rss_bytes
        self.started = self.live = 0

    @property
    def slept(self) -> int:
        """Names that were touched and sleep again, at the last look."""
        return max(0, self.started - self.live)

    async def look(self) -> None:
        self.most_bytes = max(self.most_bytes, self._host.rss_bytes)
        # In this order: a topic that is made in between lowers the number of those that sleep.
        self.started = starts.count(self._host.starts)
        self.live = await _live(self._app)

    async def until_all_sleep(self, names: int, patience_s: float) -> None:
        """Raises `InvalidRun` if for `patience_s` no message starts and no topic falls asleep."""
        deadline, before = time.monotonic() + patience_s, (-1, -1)
        while self.started < names or self.live:
            if (self.started, self.live) != before:
                deadline, before = time.monotonic() + patience_s, (self.started, self.live)
            if time.monotonic() > deadline:
                raise InvalidRun(
                    f"{self.started} of {names} messages started and {plurals.count(self.live, 'topic')} awake, and "
                    f"nothing changed for {patience_s:g} s"
                )
            await asyncio.sleep(LOOK_S)
            await self.look()


async def run(
    stage: Stage, *, names: int, batch: int, at_once: int, idle_s: float, rows_s: float, patience: float
) -> dict[str, Any]:
    at_once = max(at_once, batch)
    async with stage.app() as app:
        await family.create(app, most=at_once, idle_s=idle_s)
        with watched(stage, patience) as host:
            stage.say("starting the host")
            await host.start()
            await asyncio.sleep(CALM_S)
            before = await traces.found(app, stage)
            bare, began_s = host.rss_bytes, time.monotonic()
            sleepers = Sleepers(app, host)
            async with stage.progress("touched and asleep again", names, lambda: sleepers.slept):
                sleeping = asyncio.create_task(sleepers.until_all_sleep(names, patience))
                try:
                    await stage.elsewhere(publisher, stage.url, stage.database, names, batch, at_once, host.waits)
                    await sleeping
                finally:
                    sleeping.cancel()
            took_s = time.monotonic() - began_s
            asleep = (await traces.found(app, stage)).beyond(before)
            left, rss = asleep, host.rss_bytes
            if rows_s:
                stage.say(f"waiting at most {rows_s:g} s for the last row")
            while left.rows and time.monotonic() < began_s + took_s + rows_s:
                await asyncio.sleep(ROWS_LOOK_S)
                left, rss = (await traces.found(app, stage)).beyond(before), host.rss_bytes
            await host.stop()
    return {
        "rss_ratio_after": rss / bare,
        "keys_left": sum(left.keys.values()),
        "rows_left": sum(left.rows.values()),
        "keys_left_where": traces.text(left.keys),
        "rows_left_where": traces.text(left.rows),
        "rows_left_when_asleep": sum(asleep.rows.values()),
        "took_s": took_s,
        "host_mb_before": bare / 1e6,
        "host_mb_most": sleepers.most_bytes / 1e6,
        "host_mb_after": rss / 1e6,
    }

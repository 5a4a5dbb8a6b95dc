"""The snapshots that hosts keep of themselves in the database."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from emq.database import Database, host_stats
from emq.host import statistics
from emq.host.statistics import HostStatistics
from emq.observe.opened import Opened
from emq.runtime import durations

FORGOTTEN_S = 3600.0
"""Seconds of silence after which commands hide a host."""


class AgedSnapshot(NamedTuple):
    """A host's snapshot.

    Attributes:
        age_s: seconds since it was taken, by the environment's time.
    """

    host: HostStatistics
    age_s: float

    @property
    def live(self) -> bool:
        return self.age_s <= statistics.LIVE_S

    @property
    def state(self) -> str:
        """For people: `live`, or `stale, 12 s`."""
        return "live" if self.live else f"stale, {durations.brief(self.age_s)}"

    @property
    def troubles(self) -> list[str]:
        """What keeps a live host from its work, a line for each cause."""
        return [f"{self.host.host}: {text}" for text in self.host.troubles] if self.live else []


async def load(app: Opened) -> list[AgedSnapshot]:
    """All hosts heard of within the last hour, by name, without those of another version."""
    return await load_from(app.database, app.settings.environment, app.clock.now())


async def load_from(database: Database, environment: str, now_s: float) -> list[AgedSnapshot]:
    """As `load`; `now_s` is the environment's time."""
    seen = []
    for _, text, saved_ms in await host_stats.load(database, environment):
        age_s = max(0.0, now_s - saved_ms / 1000)
        if age_s > FORGOTTEN_S:
            continue
        try:
            seen.append(AgedSnapshot(statistics.decode(text), age_s))
        except msgspec.DecodeError:
            continue
    return seen

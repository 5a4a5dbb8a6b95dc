"""Rate of healthy tenants on a host that starts into tenants that hang, all of them unknown to it.

`python -m bench isolation --start` goes through `SCENES`: 10 to 80 % of 1,000 tenants hang, with several
`max_in_flight` of the host; and of 50 tenants, with messages of 32 KiB, of which the host may hold 256 MiB. In each
scene the backlog of the hanging tenants lies in the store when the host starts. From then on the healthy tenants'
messages are published at a steady rate. `SOON_S` later the measured time begins. `start_share` is the share of the
healthy messages due within it that started at most `LATE_S` late: less than their rate would make them later and later.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from bench.engine import victims
from bench.support.figures import percentile
from bench.support.stage import Stage
from emq.host import garbage_collection
from emq.runtime.settings import Settings
from emq.storage.message import Message
from emq.topics.model import Topic, TopicOptions

OF = 1_000
HANG_QPS = 200.0
HANG_LIMIT = 1_000
QPS = 100.0
RATE_PER_S = 400.0
"""Messages a second to all healthy tenants together, which take turns. Half of these tenants wait, half never do."""
WORK_S = 0.05
SOON_S = 3.0
MEASURED_S = 5.0
LATE_S = 1.0
FILL = 1.5
"""The backlog of the hanging tenants, as a multiple of what the host may hold."""


class Scene(NamedTuple):
    """Attributes:
    percent: share of the tenants that hang.
    max_in_flight: of the host.
    size: bytes of a message of a tenant that hangs.
    of: number of tenants.
    """

    percent: int
    max_in_flight: int
    size: int = 100
    of: int = OF

    @property
    def hanging(self) -> int:
        return self.of * self.percent // 100

    @property
    def backlog(self) -> int:
        """The messages of one tenant that hangs."""
        held = self.max_in_flight if self.size <= 100 else (256 << 20) // self.size
        return max(2, min(HANG_LIMIT, int(FILL * held / self.hanging)))

    def __str__(self) -> str:
        return f"{self.percent}%_{self.max_in_flight}" + (f"_{self.size >> 10}KiB" if self.size > 100 else "")


SCENES = (
    *(Scene(percent, most) for most in (1_000, 5_000, 20_000) for percent in (10, 30, 60, 80)),
    *(Scene(percent, 20_000, 32 << 10, 50) for percent in (10, 30, 60, 80)),
)


def arrivals(tenants: list[str], seconds: float) -> Iterator[tuple[float, str]]:
    """Yield the arrivals of the healthy tenants' messages, at a steady rate."""
    for i in range(int(seconds * RATE_PER_S)):
        yield i / RATE_PER_S, tenants[i % len(tenants)]


async def publisher(url: str, database: str, tenants: list[str], seconds: float) -> dict[str, float]:
    return await victims.publish(url, database, arrivals(tenants, seconds), None)


async def run(stage: Stage, scenes: tuple[Scene, ...] = SCENES) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for i, scene in enumerate(scenes):
        stage.say(f"{scene.hanging} of {scene.of} tenants hang, max_in_flight {scene.max_in_flight}, {scene.size} B")
        share, p99_ms = await _play(stage, scene, f"{i}")
        figures |= {f"{scene}": f"{share:.3f}, p99 {p99_ms:,.0f} ms"}
        figures["start_share"] = min(share, figures.get("start_share", 1.0))
    return figures


async def _play(stage: Stage, scene: Scene, prefix: str) -> tuple[float, float]:
    """Return the share of the healthy messages due in the measured time that started in time, and their p99 wait."""
    started: dict[str, float] = {}

    async def wait(message: Message) -> None:
        started[message.id] = time.monotonic()
        await asyncio.sleep(WORK_S)

    async def pass_(message: Message) -> None:
        started[message.id] = time.monotonic()

    async def hang(_: Message) -> None:
        await asyncio.sleep(10_000)

    hung = [f"hang-{prefix}-{i}" for i in range(scene.hanging)]
    well = [f"{'wait' if i % 2 else 'pass'}-{prefix}-{i}" for i in range(scene.of - scene.hanging)]
    async with stage.app(Settings(max_in_flight=scene.max_in_flight, drain_s=0.1)) as app:
        await app.admin.create(
            [Topic(name, HANG_QPS, options=TopicOptions(max_in_flight=HANG_LIMIT)) for name in hung]
            + [Topic(name, QPS) for name in well]
        )
        app.handlers.bind(f"hang-{prefix}-*", hang)
        app.handlers.bind(f"wait-{prefix}-*", wait)
        app.handlers.bind(f"pass-{prefix}-*", pass_)
        for name in hung:
            await app.publish_many(name, [b"x" * scene.size] * scene.backlog)
        async with app.running() as host:
            garbage_collection.shorten_pauses()  # as `emq host` does
            due = await stage.elsewhere(publisher, stage.url, stage.database, well, SOON_S + MEASURED_S + 0.5)
            await asyncio.sleep(0.5)
            in_flight = host.work.dispatcher.flight.count
        stage.say(f"{in_flight} in flight")
        for name in (*hung, *well):
            await app.admin.delete(name, force=True)
    began = min(due.values())
    measured = {id_: at for id_, at in due.items() if SOON_S <= at - began < SOON_S + MEASURED_S}
    waits = [(started.get(id_, math.inf) - at) * 1000 for id_, at in measured.items()]
    return sum(wait_ms <= LATE_S * 1000 for wait_ms in waits) / len(waits), percentile(waits, 99)

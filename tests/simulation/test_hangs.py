"""Mass hangs, by seed: whatever hangs, however many and for how long, healthy topics keep their latency."""

from __future__ import annotations

import asyncio
import random

import pytest

from emq.storage.message import Message
from support.rig import Rig, Seen
from support.virtual import virtual

SEEDS = 8
PLACES = 600
LATE_S = 0.25
"""Most that a message of a healthy topic waits; it is published at a rate far below its quota."""


class Hang:
    """What hangs, from when, for how long, and how its messages end: by a time-out, or when it is over."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"{seed} hang")
        self.topics = rng.choice((3, 20, 100, 700))
        self.qps = {3: 400.0, 20: 60.0, 100: 10.0, 700: 1.0}[self.topics]
        self.begins_s = rng.uniform(1.0, 4.0)
        self.lasts_s = rng.uniform(2.0, 20.0)
        self.timeout_s = rng.choice((None, 0.5, 3.0))
        self.share = rng.choice((0.5, 1.0))
        self.rng = rng
        self.over = asyncio.Event()
        self.under_way = False
        self.hung = 0

    async def handle(self, m: Message) -> None:
        if self.under_way and m.topic.startswith("sick") and self.rng.random() < self.share:
            self.hung += 1
            await self.over.wait()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", range(SEEDS))
@virtual
async def test_healthy_topics_keep_their_latency_while_others_hang(r: Rig, seed: int) -> None:
    hang, rng = Hang(seed), random.Random(f"{seed} load")
    sick, well = [f"sick.{i}" for i in range(hang.topics)], [f"well.{i}" for i in range(15)]
    for name in sick:
        limit = {"max_in_flight": PLACES} if hang.topics == 3 else {}
        await r.topic(name, hang.qps, handler_timeout_s=hang.timeout_s, backoff_s=(0.5,), **limit)
    for name in well:
        await r.topic(name, 20)
    seen, sent = Seen(hang.handle), 0
    async with r.consuming(seen, drain_s=0.1, max_in_flight=PLACES) as host:
        await asyncio.sleep(2)
        start = r.clock.now()
        most = 0
        while (elapsed := r.clock.now() - start) < 22:
            hang.under_way = hang.begins_s <= elapsed < hang.begins_s + hang.lasts_s
            if elapsed >= hang.begins_s + hang.lasts_s:
                hang.over.set()
            if elapsed >= hang.begins_s - 1:
                for name in rng.sample(sick, max(1, len(sick) // 10)):
                    await r.producer.publish_many(name, [b"x"] * max(1, int(hang.qps)))
            for name in rng.sample(well, 6):
                await r.producer.publish(name, b"x")
                sent += 1
            most = max(most, host.work.dispatcher.flight.count)
            assert host.work.dispatcher.flight.count <= PLACES
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
    assert hang.hung > 0
    healthy = [d for d in seen.deliveries if d.topic.startswith("well")]
    assert len(healthy) == sent
    assert max(d.started_us - d.ready_us for d in healthy) / 1e6 < LATE_S, f"{hang.__dict__}, {most} in flight"

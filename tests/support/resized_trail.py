"""The trail of two topics that are resized while their keys run: one host serves one of them the wrong way round."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pytest

from emq.groups import priority
from emq.host import ownership, topic_updates
from emq.producer import Producer
from emq.runtime.clock import SystemClock
from emq.storage.message import Message
from emq.topics.key_layouts import group_of_key
from emq.topics.model import Topic
from emq.trail.options import TrailOptions
from emq.trail.writer import Trail
from support.rig import bound, rig
from support.waiting import until

LAWFUL, FAULTY = "lawful", "faulty"
LOWS = 300
"""Messages of low priority that wait in the group of the high one: six seconds of the topic's quota."""

_KEYS = [f"k{n}" for n in range(4_000)]
MOVED = next(key for key in _KEYS if (group_of_key(key, 2), group_of_key(key, 5)) == (0, 1))
"""A key that comes from group 0 to group 1 when the topics grow from two groups to five."""
STAYS = [key for key in _KEYS if (group_of_key(key, 2), group_of_key(key, 5)) == (1, 1)][:LOWS]
"""Keys of group 1 before and after."""


class LowestFirst:
    """The mistake: a policy that serves the lowest priority first, from some time on."""

    def __init__(self, since: asyncio.Event) -> None:
        self._since = since

    def choose(self, buffers: Sequence[deque[Message]], now_us: int) -> int:
        best = max if self._since.is_set() else min
        return best((i for i, buffer in enumerate(buffers) if buffer), default=-1)


async def write(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Topic]:
    """Run a host, to be called in virtual time; return the topics as they are in the end.

    In each topic, group 0 runs a message of the key `MOVED` while the topic grows. The next message of that key has the
    high priority. Group 1 holds it back until group 0 has passed, and meanwhile starts messages of low priority, as it
    should. Some of these still wait when the first message is done and the gate opens. From then on the topic `FAULTY`
    goes on with its lows, and `LAWFUL` with the high one.
    """
    honest, done = priority.policy_for, asyncio.Event()
    monkeypatch.setattr(priority, "policy_for", lambda t: LowestFirst(done) if t.name == FAULTY else honest(t))
    for module in (ownership, topic_updates):  # a buffer for all lows: the policy knows nothing of those in the store
        monkeypatch.setattr(module, "HORIZON_S", 60.0)
    started: list[str] = []

    async def handle(m: Message) -> None:
        started.append(f"{m.topic} {m.payload.decode()}")
        if m.payload == b"first":
            await done.wait()

    trail = Trail.open(directory, "all", SystemClock(), TrailOptions(rotate_s=60.0))
    try:
        async with rig() as r:
            producer = Producer(r.store, r.catalog, trail, r.clock)
            async with r.consuming(bound({"*": handle}), trail=trail):
                for name in (LAWFUL, FAULTY):
                    await r.topic(name, 20, group_qps=10, priorities=("high", "low"))
                    await producer.publish(name, "first", key=MOVED, priority="high")
                await until(lambda: len(started) == 2)
                for name in (LAWFUL, FAULTY):
                    await r.admin.update(name, qps=50)
                await producer.refresh()
                for name in (LAWFUL, FAULTY):
                    await producer.publish(name, "high", key=MOVED, priority="high")
                    await producer.publish_many(name, ["low"] * LOWS, keys=STAYS, priority="low")
                await until(lambda: len(started) >= 2 + LOWS)
                assert not any("high" in line for line in started), "the gate holds the high messages back"
                done.set()
                await until(lambda: len(started) == 2 * (LOWS + 2), 20)
            assert [line for line in started if line.startswith(FAULTY)][-1] == f"{FAULTY} high"
            return [await r.catalog.get(name) for name in (LAWFUL, FAULTY)]
    finally:
        trail.close()

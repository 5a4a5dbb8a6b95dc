"""Whatever is done to a topic's size while hosts come and go: every message is delivered, and none too fast."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from hypothesis import example, given, settings
from hypothesis import strategies as st

from emq.runtime import errors
from emq.storage.message import Message
from support.rig import Rig, Seen, rig, running, starts_per_second
from support.virtual import LONGEST_S, run
from support.waiting import until

GROUP_QPS = 10

resize = st.tuples(st.just("resize"), st.sampled_from([5.0, 10.0, 25.0, 60.0, 100.0]))
publish = st.tuples(st.just("publish"), st.integers(1, 60))
wait = st.tuples(st.just("wait"), st.sampled_from([0.05, 0.7, 1.9, 5.0]))
hosts = st.tuples(st.just("hosts"), st.integers(0, 3))
refresh = st.tuples(st.just("refresh"), st.just(0))


async def handle(m: Message) -> None:
    await asyncio.sleep(0.02)
    if m.attempt == 1 and m.payload == b"fails once":
        raise ValueError("once")


class Play:
    def __init__(self, r: Rig) -> None:
        self.r = r
        self.seen = Seen(handle)
        self.sent: list[str] = []
        self.stacks: list[AsyncExitStack] = []
        self.names = 0
        self.most = 10.0

    async def resize(self, qps: float) -> None:
        self.most = max(self.most, qps)
        await self.r.admin.update("orders", qps=qps)

    async def publish(self, count: int) -> None:
        """Half of them by key; a producer that has not heard of a change must be served or refused, never lose."""
        payloads = [b"fails once" if i % 5 == 0 else b"x" for i in range(count)]
        keys = [f"k{i % 7}" if i % 2 else None for i in range(count)]
        try:
            self.sent += await self.r.producer.publish_many("orders", payloads, keys=keys)
        except errors.EMQError as exc:
            raise AssertionError("a publish was refused for good") from exc

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def refresh(self, _: object) -> None:
        await self.r.producer.refresh()

    async def hosts(self, count: int) -> None:
        while len(self.stacks) > count:
            await self.stacks.pop(0).aclose()
        while len(self.stacks) < count:
            stack = AsyncExitStack()
            self.names += 1
            await stack.enter_async_context(running(self.r.host(self.seen, f"host-{self.names}")))
            self.stacks.append(stack)

    async def finish(self) -> None:
        await self.hosts(1)
        await until(lambda: len({d.id for d in self.seen.deliveries}) == len(self.sent), 2_000, 0.25)
        await asyncio.sleep(15)  # the retries are done, and the retired groups dropped
        await self.hosts(0)


async def resized(steps: list[tuple[str, float]]) -> None:
    async with rig() as r:
        await r.topic("orders", 10, group_qps=GROUP_QPS, backoff_s=(0.5,))
        play = Play(r)
        await play.hosts(1)
        for name, value in steps:
            await getattr(play, name)(value)
        await play.finish()
        assert {d.id for d in play.seen.deliveries} == set(play.sent)
        assert max(Counter((d.id, d.attempt) for d in play.seen.deliveries).values(), default=1) == 1
        assert await r.lag("orders") == 0
        assert max(starts_per_second(play.seen.deliveries).values(), default=0) <= play.most
        topic = await r.catalog.get("orders")
        assert topic.groups == topic.active_groups


@example([("hosts", 3), ("wait", 1.9), ("hosts", 2), ("publish", 1)])  # a stop between a suspension and its hand-over
@given(st.lists(st.one_of(resize, publish, wait, hosts, refresh), max_size=25))
@settings(max_examples=15, deadline=None)
def test_resizing_under_load_loses_nothing_repeats_nothing_and_keeps_the_cap(
    steps: list[tuple[str, float]],
) -> None:
    run(asyncio.wait_for(resized(steps), LONGEST_S))

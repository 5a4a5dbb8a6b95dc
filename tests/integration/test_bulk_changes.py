"""Changes of thousands of groups at once never hold up the event loop for long, nor end a host."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import time
from collections.abc import AsyncIterator, Iterator

import emq
from emq.allocation import fenced_groups, records
from emq.allocation.handoff import Handoff
from emq.allocation.member import ClusterMembership
from emq.allocation.membership import Seat
from emq.allocation.records import Entry, Running
from emq.host.host import Host
from emq.topics.model import State, Topic, TopicOptions
from support import waiting
from support.ensemble import MemoryEnsemble

GROUPS, TOPICS = 10_000, 10
MANY, SHORT_S = 20_000, 0.04
"""Below 0.01 s on a quiet machine, the store in memory included."""

LONGEST_S = 0.08
"""Twice to five times what it takes; without slices it was seconds."""

REFERENCE_S = 0.004
"""What `slower` measures on a quiet machine; the steps of a slower one may take as many times longer."""


def slower() -> float:
    """Return how many times slower than a quiet machine this one is now; 1 at least."""
    took_s = []
    for _ in range(5):
        began_s = time.thread_time()
        {str(i): (i, str(i)) for i in range(MANY)}
        took_s.append(time.thread_time() - began_s)
    return max(1.0, sorted(took_s)[2] / REFERENCE_S)


until = functools.partial(waiting.until, timeout_s=180, step_s=0.05)


class Loop:
    """How long one step of the event loop took at most, in CPU time, which other processes do not lengthen."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.what = ""

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        original, thread_s = asyncio.events.Handle._run, time.thread_time

        def run(handle: asyncio.Handle) -> None:
            began_s = thread_s()
            original(handle)
            # The steps of this test itself are not the host's.
            if asyncio.isfuture(task := getattr(handle._callback, "__self__", None)) and task is test:
                return
            if (took_s := thread_s() - began_s) > self.longest_s:
                self.longest_s, self.what = took_s, f"{took_s:.3f} s: {handle!r}"

        test = asyncio.current_task()
        gc.collect()
        gc.disable()  # what lies in memory is the store of this test
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
        try:
            yield
        finally:
            asyncio.events.Handle._run = original  # type: ignore[method-assign]
            gc.enable()


@contextlib.asynccontextmanager
async def consuming(app: emq.App) -> AsyncIterator[Host]:
    """The app as the only member of a cluster in memory."""
    tree = MemoryEnsemble(app.clock).tree()
    run = asyncio.create_task(app.run(ClusterMembership(Seat(tree, "online", "a", app._next_generation, app.clock))))
    await asyncio.sleep(0)
    assert app.host is not None
    await app.host.running.wait()
    yield app.host
    app.stop()
    await run


async def test_no_change_of_ten_thousand_groups_holds_up_the_event_loop() -> None:
    app = emq.App("memory:", database="sqlite://")
    loop, each = Loop(), GROUPS // TOPICS
    names = [f"t{n}" for n in range(TOPICS)]

    @app.handler("*")
    async def handle(message: emq.Message) -> None:
        pass

    async with app, consuming(app) as host:
        owned = host.ownership
        found: dict[str, float] = {}
        longest: dict[str, str] = {}

        @contextlib.contextmanager
        def step(name: str) -> Iterator[None]:
            loop.longest_s = 0.0
            with loop.watched():
                yield
            found[name] = loop.longest_s
            longest[name] = loop.what

        with step("create"):
            await app.catalog.create_many([Topic(name, each * 10.0, group_qps=10.0) for name in names])
            await until(lambda: len(owned.groups) == GROUPS)
        await asyncio.sleep(1.5)
        for name in names:
            await app.publish_many(name, [b"x"] * each * 3)
        with step("quota"):
            for name in names:
                await app.catalog.update(name, qps=each * 9.5)
            await until(lambda: all(group.owner.topic.qps == each * 9.5 for group in owned.groups.values()))
            await asyncio.sleep(0.5)  # until each has its quota of that
        with step("pause and resume"):
            for state in (State.PAUSED, State.ACTIVE):
                for name in names:
                    await app.catalog.update(name, state=state)
                await until(lambda state=state: all(t.state is state for t in owned.topics.values()))
                await asyncio.sleep(0.3)
        with step("shrink"):
            for name in names:
                await app.catalog.update(name, qps=each * 1.0)
            await until(lambda: all(t.active_groups == each // 10 for t in owned.topics.values()))
            await asyncio.sleep(1)
        with step("delete"):
            for name in names:
                await app.catalog.delete(name)
            await until(lambda: not owned.groups)
    assert max(found.values()) < LONGEST_S * slower(), longest


async def test_nothing_that_a_host_does_over_twenty_thousand_groups_of_one_topic_takes_long() -> None:
    """Whatever of the host a step of the event loop belongs to: the groups are taken, used, bound anew and retired."""
    app, loop = emq.App("memory:", database="sqlite://"), Loop()

    @app.handler("*")
    async def handle(message: emq.Message) -> None:
        await asyncio.sleep(0)

    async with app, consuming(app) as host:
        owned = host.ownership
        with loop.watched():
            await app.catalog.create(Topic("t", MANY * 10.0, group_qps=10.0, options=TopicOptions(ttl_s=300.0)))
            await until(lambda: len(owned.groups) == MANY)
            await app.publish_many("t", [b"x"] * MANY * 3)
            owned.rebind("t")
            owned.rebind("*")
            await app.catalog.update("t", qps=MANY * 2.0)
            await until(lambda: owned.topics["t"].active_groups == MANY // 5)
            await asyncio.sleep(2.5)
    assert loop.longest_s < SHORT_S * slower(), loop.what


def test_what_a_host_says_of_any_number_of_groups_fits_into_a_node() -> None:
    names = [f"{'a-long-name-of-a-topic-' * 5}{n:08x}/{n}" for n in range(60_000)]
    fenced = fenced_groups.named((name, 1_700_000_000 + n) for n, name in enumerate(names))
    assert fenced
    said = Running("i", "m", 1, 1.0, 0.0, fenced=fenced, draining=tuple(fenced))
    assert len(records.encode(said)) < records.CHUNK_BYTES


def test_the_state_of_a_handoff_takes_time_in_proportion_to_the_groups() -> None:
    def took_s(groups: int) -> float:
        handoff, names = Handoff(), [f"t/{n}" for n in range(groups)]
        handoff.plan(1, {name: Entry(1, "") for name in names})
        handoff.taken(dict.fromkeys(names, 1))
        began_s = time.thread_time()
        for name in names:
            handoff.renew(name)
        return time.thread_time() - began_s

    few, many = min(took_s(1_000) for _ in range(3)), min(took_s(8_000) for _ in range(3))
    assert many < 40 * few

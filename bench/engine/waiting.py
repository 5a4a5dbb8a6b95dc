"""Messages a second of one host whose handlers wait, beside a bare loop of tasks that calls the same handlers.

Three handlers: one that gives way once (`await asyncio.sleep(0)`), one that sleeps for 50 ms, and a plain function,
which runs on the thread pool. The bare loop makes one task for each message, and keeps as many in flight as the host
had at most. Its messages lie in memory: it neither reads nor settles. For the plain function it has a thread pool like
the host's. The bare loop runs twice after each host, so that all meet the same machine: with the garbage collector as
Python sets it, and as a host sets it (`..._same_ratio`). On a busy machine look at the ratio of the CPU: the host
shares the cores with the store's server, the bare loop does not.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, NamedTuple

from bench.support.backlog import PAYLOAD, fill
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage, Stopwatch, unlimited_topics
from emq.host import garbage_collection
from emq.host.handlers import Handlers
from emq.runtime import plurals
from emq.storage.message import IdSource, Message
from emq.topics.model import Topic

WAIT_S = 0.05
LOOK_S = 0.005
"""Seconds between looks at the number of messages that the host has settled."""


async def give_way(_: Message) -> None:
    await asyncio.sleep(0)


async def sleep(_: Message) -> None:
    await asyncio.sleep(WAIT_S)


def plain(_: Message) -> None:
    pass


class Cost(NamedTuple):
    """Attributes:
    us: microseconds for one message.
    cpu_us: microseconds of this process's CPU for one message.
    """

    us: float
    cpu_us: float


def cost(watch: Stopwatch, messages: int) -> Cost:
    return Cost(watch.wall_s / messages * 1e6, watch.cpu_s / messages * 1e6)


def made(topics: list[Topic], count: int) -> list[Message]:
    """Make messages as `fill` does, in memory, of all topics in turn."""
    ids = IdSource()
    names = itertools.cycle([topic.name for topic in topics])
    return [Message(ids.next(), PAYLOAD, topic=name) for name in itertools.islice(names, count)]


async def bare(function: Callable[[Message], Any], topics: list[Topic], count: int, in_flight: int) -> Cost:
    """Call the handler in one task for each of `count` messages, `in_flight` at a time; return the cost."""
    handlers = Handlers()
    handlers.bind("*", function)
    binding = handlers.find("*")
    assert binding is not None
    messages = made(topics, count)
    watch = Stopwatch()
    await in_tasks(binding.call, messages, in_flight)
    found = cost(watch, count)
    handlers.close()
    return found


async def in_tasks(handler: Callable[[Message], Awaitable[object]], messages: Iterable[Message], most: int) -> None:
    """Await the handler in one task for each message, `most` tasks at a time; each task starts the next one."""
    loop, waiting = asyncio.get_running_loop(), iter(messages)
    tasks: dict[str, asyncio.Task[None]] = {}
    all_done = loop.create_future()

    async def one(message: Message) -> None:
        await handler(message)
        del tasks[message.id]
        begin(waiting)
        if not tasks:
            all_done.set_result(None)

    def begin(some: Iterator[Message]) -> None:
        for message in some:
            tasks[message.id] = loop.create_task(one(message))
            break

    for _ in range(most):
        begin(waiting)
    await all_done


async def hosted(
    stage: Stage, function: Callable[[Message], Any], topics: list[Topic], per_queue: int
) -> tuple[Cost, int]:
    """Drain a backlog with a host that calls the handler.

    Returns:
        The cost from the first settled message on, and the most messages that were seen in flight.
    """
    total = await stage.elsewhere(fill, stage.url, topics, per_queue)
    async with stage.app() as app:
        app.handlers.bind("*", function)
        async with app.running() as host:
            endings, flight = host.work.endings, host.work.dispatcher.flight
            while not endings.succeeded:
                await asyncio.sleep(LOOK_S)
            before, watch, in_flight = endings.succeeded, Stopwatch(), 1
            while endings.succeeded < total:
                await asyncio.sleep(LOOK_S)
                in_flight = max(in_flight, flight.count)
            found = cost(watch, total - before)
        unfinished = sum(lag.unfinished for lag in await app.admin.lag(topics))
        assert unfinished == 0, f"{plurals.count(unfinished, 'message')} not checkpointed"
        return found, in_flight


async def run(stage: Stage, *, queues: int, messages: int, rounds: int) -> dict[str, Any]:
    per_queue = max(1, messages // queues)
    async with stage.app() as app:
        topics = await app.admin.create(unlimited_topics(queues))
    values: dict[str, Any] = {}
    for name, function in (("sleep0", give_way), ("sleep50ms", sleep), ("plain", plain)):
        bares, sames, hosts, in_flight = [], [], [], []
        for i in range(rounds):
            stage.say(
                f"{name}, round {i + 1} of {rounds}: {plurals.count(per_queue, 'message')} in each of "
                f"{plurals.count(queues, 'queue')}"
            )
            found, most = await hosted(stage, function, topics, per_queue)
            hosts.append(found)
            in_flight.append(most)
            bares.append(await bare(function, topics, messages, most))
            with garbage_collection.in_larger_steps():
                sames.append(await bare(function, topics, messages, most))
        values |= compared(name, bares, sames, hosts) | {f"{name}_in_flight": max(in_flight)}
    return values


def compared(name: str, bares: list[Cost], sames: list[Cost], hosts: list[Cost]) -> dict[str, float]:
    """Return the figures of one handler: medians over the rounds, each host beside the bare loops of its round.

    Args:
        sames: of the bare loops that have the host's garbage collector.
    """
    return {
        f"{name}_per_s": round(1e6 / statistics.median(h.us for h in hosts)),
        f"{name}_ratio": statistics.median(b.us / h.us for b, h in zip(bares, hosts, strict=True)),
        f"{name}_cpu_ratio": statistics.median(b.cpu_us / h.cpu_us for b, h in zip(bares, hosts, strict=True)),
        f"{name}_same_ratio": statistics.median(s.us / h.us for s, h in zip(sames, hosts, strict=True)),
        f"{name}_cpu_us": statistics.median(h.cpu_us for h in hosts),
        f"{name}_bare_cpu_us": statistics.median(b.cpu_us for b in bares),
    }


BENCHMARK = Benchmark(
    run,
    options=(
        ("queues", 3_000, "physical queues"),
        ("messages", 300_000, "backlog in all, for each handler and round"),
        ("rounds", 3, "rounds; the median counts"),
    ),
    figures=(
        Figure("sleep0_ratio", ">=", 0.6),
        Figure("sleep50ms_ratio", ">=", 0.6),
        Figure("plain_ratio", ">=", 0.6),
    ),
)

"""Calls to the store for each message, by job and method: what an engine behind an adapter must bear.

Each job runs twice: message by message, where the next one is published once the last one is finished, and with all
messages at once. The calls are counted at the store's protocols, so the figures hold for every adapter that puts one
call into one round trip. Calls that a host makes in any case (a look at what is unarmed, every few seconds) count, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from bench.support.figures import Benchmark
from bench.support.stage import Stage
from emq.runtime import errors, plurals
from emq.storage.message import Message

PARTS = {
    "log": ("put", "get", "read", "bounds", "trim"),
    "lanes": ("add", "claim", "settle", "recover", "inspect", "find"),
    "sorted": ("add", "claim", "settle", "recover", "inspect"),
}

JOBS: dict[str, dict[str, Any]] = {
    "consume": {},
    "delay": {"delay_ms": 100},
    "retry": {"backoff_s": [0.1]},
    "sorted": {"kind": "range_merge", "slots": 4, "time_range_ms": 20},
}
"""By job: options of its topic, or of its publishes."""

OF_PUBLISH = ("delay_ms",)

QPS = 100_000.0
CHECKPOINTED_S = 7.0
"""Seconds after the last message in which checkpoints are written, and what they cover is trimmed."""


class Counting:
    """Counts the calls to a store's methods, and the entries in them."""

    def __init__(self, store: Any) -> None:
        self.calls: Counter[str] = Counter()
        self.entries: Counter[str] = Counter()
        for part, methods in PARTS.items():
            for method in methods:
                whole = getattr(store, part)
                setattr(whole, method, self._counted(f"{part}.{method}", getattr(whole, method)))
        store.unarmed = self._counted("unarmed", store.unarmed)

    def clear(self) -> None:
        self.calls.clear()
        self.entries.clear()

    def _counted(self, name: str, whole: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            self.entries[name] += len(args[0])
            return await whole(*args, **kwargs)

        return call


async def run(stage: Stage, *, alone: int, together: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with stage.app() as app:
        finished, failed = Counter[str](), set[str]()

        async def handle(message: Message) -> None:
            if message.topic == "retry" and message.id not in failed:
                failed.add(message.id)
                raise errors.Retry
            finished[message.topic] += 1

        for job, options in JOBS.items():
            of_topic = {name: value for name, value in options.items() if name not in OF_PUBLISH}
            await app.create_topic(job, **({"qps": QPS, "group_qps": QPS} | of_topic))
        app.handlers.bind("*", handle)
        counting = Counting(app.store)
        async with app.running():
            await asyncio.sleep(3)
            for job, options in JOBS.items():
                of_publish = {name: value for name, value in options.items() if name in OF_PUBLISH}
                for how, count in (("alone", alone), ("together", together)):
                    stage.say(f"{job}: {plurals.count(count, 'message')} {how}")
                    counting.clear()
                    before = finished[job]
                    if how == "alone":
                        for number in range(count):
                            await app.publish(job, b"%d" % number, **of_publish)
                            await _until(finished, job, before + number + 1)
                    else:
                        await asyncio.gather(*(app.publish(job, b"x%d" % n, **of_publish) for n in range(count)))
                        await _until(finished, job, before + count)
                    await asyncio.sleep(CHECKPOINTED_S)
                    for name, calls in sorted(counting.calls.items()):
                        found[f"{job} {how} {name}"] = f"{calls / count:.3g} with {counting.entries[name] / calls:.3g}"
    return found


async def _until(finished: Counter[str], job: str, count: int) -> None:
    async with asyncio.timeout(60):
        while finished[job] < count:
            await asyncio.sleep(0.002)


BENCHMARK = Benchmark(
    run,
    options=(("alone", 100, "messages, one after the other"), ("together", 10_000, "messages, all at once")),
    figures=(),
    stores=("memory",),
    short={"alone": 20, "together": 1_000},
)

"""Many sends over few keys: merged while they wait, so that each key is delivered once for each time range."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import emq
from bench.sorted.rmq import CHUNK, topic
from bench.support.figures import Benchmark, Figure
from bench.support.stage import Stage, Stopwatch
from emq.runtime import plurals
from emq.storage.message import Message
from emq.topics.model import Kind


async def send(url: str, database: str, name: str, sends: int, keys: int, seed: int) -> float:
    """Send `sends` messages over `keys` contents, each at least once; return the seconds that this took."""
    dice = random.Random(seed)
    contents = [b"%0100d" % key for key in range(keys)]
    chosen = contents + dice.choices(contents, k=sends - keys)
    dice.shuffle(chosen)
    async with emq.App(url, database=database) as app:
        await app.catalog.version()
        watch = Stopwatch()
        starts = iter(range(0, sends, CHUNK))

        async def sender() -> None:
            for start in starts:
                await app.publish_many(name, chosen[start : start + CHUNK])

        await asyncio.gather(sender(), sender())
        return watch.wall_s


async def run(stage: Stage, *, sends: int, keys: int, ranges: int, range_ms: int) -> dict[str, Any]:
    delivered = 0

    async with stage.app() as app:
        await app.admin.create([topic("merge", Kind.RANGE_MERGE, 64, time_range_ms=range_ms)])

        @app.handler("*")
        async def handle(_: Message) -> None:
            nonlocal delivered
            delivered += 1

        async with app.running():
            took_s = 0.0
            for turn in range(ranges):
                stage.say(
                    f"range {turn + 1} of {ranges}: {plurals.count(sends // ranges, 'send')} over "
                    f"{plurals.count(keys, 'key')}"
                )
                part_s = await stage.elsewhere(send, stage.url, stage.database, "merge", sends // ranges, keys, turn)
                if part_s * 1000 >= range_ms:
                    raise emq.InvalidSettings(
                        f"the sends took {part_s:.1f} s, longer than --range-ms {range_ms}; raise it"
                    )
                took_s += part_s
                await asyncio.sleep(range_ms / 1000 + 2)
    return {
        "sends_per_s": round(sends / took_s),
        "deliveries": delivered,
        "distinct_keys_per_range": keys * ranges,
        "surplus": delivered - keys * ranges,
    }


BENCHMARK = Benchmark(
    run,
    options=(
        ("sends", 1_000_000, "messages sent in all"),
        ("keys", 10_000, "distinct contents"),
        ("ranges", 4, "time ranges over which the messages are spread"),
        ("range-ms", 6_000, "length of a time range"),
    ),
    figures=(Figure("surplus", "==", 0),),
)

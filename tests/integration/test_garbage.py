"""Garbage in every key and column while a host runs: no loop ends, and only what is damaged is lost, by name.

`EMQ_GARBAGE_SEED` runs one seed of your own on each store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from emq.app import App
from emq.runtime import errors
from emq.storage.message import Message
from support import garbage
from support.failure_lines import without_tracebacks
from support.waiting import until

SEEDS = {"redis": (1, 5), "redis_cluster": (3, 7), "sqlite": (1, 4), "postgresql": (1, 24)}
"""Of `make test`: each has found something once."""

GIVEN = os.environ.get("EMQ_GARBAGE_SEED")
RUNS = [(store, int(seed)) for store, seeds in SEEDS.items() for seed in ((GIVEN,) if GIVEN else seeds)]


TOO_SLOW = "did not answer a call in time"
MOST_SLOW = 200


class Sort(NamedTuple):
    """A sort of topic, and how it is published to; the number of a message is its payload and its merge key."""

    settings: dict[str, Any]
    publishing: dict[str, Any]
    merging: bool = False


SORTS = {
    "log": Sort({"backoff_s": (0.2,)}, {}),
    "keyed": Sort({"backoff_s": (0.2,)}, {"key": "k"}),
    "later": Sort({"backoff_s": (0.2,)}, {"delay_ms": 300}),
    "range_merge": Sort({"kind": "range_merge", "time_range_ms": 100}, {}),
    "priority": Sort({"kind": "priority"}, {"priority": 20}),
    "fixed_time": Sort({"kind": "fixed_time"}, {"delay_ms": 100}),
    "apart": Sort(
        {"kind": "priority", "merge": "key", "retry": "backoff", "backoff_s": (0.2,)}, {"priority": 20}, True
    ),
}


class Story:
    """What was published and what became of it.

    Attributes:
        taken: by topic, the payloads that EMQ took.
        handled: by topic, those that were handled.
        refused: what publishers of bad topics were told.
        slow: publishes that had no answer in time.
    """

    def __init__(self, app: App, rng: random.Random, mark: str) -> None:
        self.app = app
        self.mark = mark
        self.taken: defaultdict[str, set[str]] = defaultdict(set)
        self.handled: defaultdict[str, set[str]] = defaultdict(set)
        self.refused: list[errors.EMQError] = []
        self.slow = 0
        self._rng = rng
        self._number = 0
        app.handler("*")(self._handle)

    async def _handle(self, m: Message) -> None:
        if m.topic.startswith("bad") and self._rng.random() < 0.3:
            raise ValueError("no")
        self.handled[m.topic].add(m.payload.decode("utf-8", "replace"))

    def topics(self, name: str) -> dict[str, Sort]:
        return {f"{name}-{self.mark}-{kind}": sort for kind, sort in SORTS.items()}

    async def create(self) -> None:
        for name in ("bad", "good"):
            for topic, sort in self.topics(name).items():
                await self.app.create_topic(topic, qps=100, **sort.settings)

    async def publish(self, names: Iterable[str], count: int) -> None:
        """Publish to all topics of these names at once, so that their messages share calls."""
        wanted = [(topic, sort) for _ in range(count) for name in names for topic, sort in self.topics(name).items()]
        await asyncio.gather(*(self._publish(topic, sort) for topic, sort in wanted))

    async def _publish(self, topic: str, sort: Sort) -> None:
        self._number += 1
        payload = f"{self._number:06}"
        options = sort.publishing | ({"merge_key": payload} if sort.merging else {})
        try:
            await self.app.publish(topic, payload, **options)
        except errors.EMQError as exc:
            if TOO_SLOW in str(exc) and self.slow < MOST_SLOW:  # the machine is busy, which proves nothing
                self.slow += 1
                await self._publish(topic, sort)
                return
            if topic.startswith("good") or "\n" in str(exc):
                raise
            self.refused.append(exc)
        else:
            self.taken[topic].add(payload)

    def missing(self, name: str) -> dict[str, set[str]]:
        """What was taken and not handled, by topic."""
        left = {topic: self.taken[topic] - self.handled[topic] for topic in self.topics(name)}
        return {topic: payloads for topic, payloads in left.items() if payloads}


async def damage(store: str, url: str, catalog: str, mark: str, rng: random.Random) -> int:
    """Write garbage over whatever belongs to the bad topics, in store and catalog; returns how much."""
    like = f"bad-{mark}%"
    if store.startswith("redis"):
        done = await garbage.damage_redis(url, rng, f"bad-{mark}")
    else:
        done = await garbage.damage_sql(url, rng, garbage.STORE_TABLES + tuple(garbage.PARTS), like)
    return done + await garbage.damage_sql(catalog, rng, garbage.CATALOG_TABLES, like)


@pytest.fixture(autouse=True)
def _handlers_fail_on_purpose() -> Iterator[None]:
    with without_tracebacks():
        yield


@pytest.mark.parametrize(("store", "seed"), RUNS)
async def test_garbage_in_every_key_and_column_stops_no_loop_and_no_neighbour(
    store: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "emq")
    rng, mark = random.Random(seed), f"s{seed}"
    urls = {"redis": "redis_url", "redis_cluster": "redis_cluster_url", "postgresql": "postgres_url"}
    url = request.getfixturevalue(urls[store]) if store in urls else f"sqlite:///{tmp_path}/store.db"
    catalog = f"sqlite:///{tmp_path}/emq.db"
    app = App(url, database=catalog)
    story = Story(app, rng, mark)
    async with app:
        await story.create()
        async with app.running() as host:
            done = 0
            for _ in range(3):
                await story.publish(("bad", "good"), 8)
                done += await damage(store, url, catalog, mark, rng)
                await story.publish(("bad", "good"), 2)
                await asyncio.sleep(0.4)
            assert done > 20, "hardly anything was damaged"
            await story.publish(("good",), 5)
            try:
                await until(lambda: not story.missing("good"), 15)
            except AssertionError:
                pytest.fail(f"seed {seed}: {story.missing('good')} were not delivered")
            assert not host.guard.broken, f"seed {seed}: {host.guard.broken}"
        assert not [line for line in caplog.text.splitlines() if line.startswith("Traceback")], f"seed {seed}"
        await tell_of_each(story, caplog.text)


async def tell_of_each(story: Story, log: str) -> None:
    """What is left of the bad topics is told of: it is dead, or still there, or the log or an error names its topic."""
    told = log + "\n".join(str(refused) for refused in story.refused)
    for topic, payloads in story.missing("bad").items():
        try:
            found = await story.app.catalog.get(topic)
            letters = [letter async for letter in story.app.dead_letters(topic)]
            lags = [*await story.app.admin.lag([found]), *await story.app.admin.slot_lag([found])]
        except errors.EMQError as exc:
            if topic not in str(exc):
                raise
            continue
        dead = {letter.payload.decode("utf-8", "replace") for letter in letters}
        if topic not in told and all(lag.ready + lag.delayed <= 0 for lag in lags):
            assert payloads <= dead, f"{topic}: nobody tells of {payloads - dead}"

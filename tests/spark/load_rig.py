"""A load on one partition, carried out in this process, with ways to disturb it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from emq_data import Data

from emq.producer import Outcome
from emq.producer.log_topics import QueueProducer
from emq.producer.queue_columns import QueueColumns
from emq.producer.routes import Route
from emq.runtime.settings import Settings
from emq.storage import message
from emq.trail.events import Published, Record
from emq.trail.sink import NullTrail
from emq_spark.load import ledger, plan_file, task, topics
from emq_spark.load.replay import Survey

PLAN = """
duration_s = 4
[[tenants]]
name = "t-{n}"
count = 2
qps = 100.0
keys = 5
priorities = { high = 0.3, low = 0.7 }
topic = { group_qps = 20.0 }
"""


class Died(BaseException):
    """Stands for the end of a task's process."""


class Deaf(NullTrail):
    """A trail that does not hear of some messages, as if the answer had been lost."""

    enabled = True

    def __init__(self, trail: Any, ids: list[str]) -> None:
        self._trail = trail
        self._ids = set(ids)

    def record(self, event: Record) -> None:
        if isinstance(event, Published) and message.label(event.ids[0]) not in self._ids:
            self._trail.record(event)


class Rig:
    """A load on one partition."""

    def __init__(self, data: Data, directory: Path, plan: str = PLAN, *, paced: bool = False) -> None:
        self.data = data
        self.directory = directory
        settings = Settings(**data.options)
        self.job = task.Job(plan_file.parse(plan), settings, str(directory), "run", 1, 1, paced)
        data.do(lambda app: topics.prepare(app, topics.needed(self.job.plan, Survey()), create=True))

    def run(self) -> task.Done:
        return task.run(self.job, 0)

    def die(self) -> None:
        with pytest.raises(Died):
            self.run()

    @property
    def place(self) -> Path:
        return self.directory / "run=run"

    def rows(self) -> list[dict[str, Any]]:
        files = sorted(self.place.glob("*.parquet"))
        return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]

    def stored(self) -> Counter[str]:
        names = self.data.do(lambda app: app.catalog.list())
        return Counter(m.uid for topic in names for m in self.data.messages(topic.name))


Publish = Callable[..., Awaitable[list[Outcome]]]


def on_call(monkeypatch: pytest.MonkeyPatch, act: Publish) -> None:
    """Have `act` decide what becomes of each call for the queues of a topic and priority; it gets its number."""
    real = QueueProducer.publish_many
    calls = iter(range(1 << 30))

    async def publish_many(
        self: QueueProducer, route: Route, priority: int, messages: QueueColumns, *, whole: bool = True
    ) -> list[Outcome]:
        return await act(next(calls), partial(real, whole=whole), self, route, priority, messages)

    monkeypatch.setattr(QueueProducer, "publish_many", publish_many)


def dying(after: int, *, stored: bool) -> Callable[..., Any]:
    """The process ends at that call: before it, or when the store has everything."""

    async def act(number: int, real: Publish, *call: Any) -> list[Outcome]:
        if number == after and not stored:
            raise Died
        ids = await real(*call)
        if number == after:
            raise Died
        return ids

    return act


def die_at(rig: Rig, call: int, *, stored: bool = True) -> None:
    """Have an attempt die at a call: before it, or when the store has everything."""
    with pytest.MonkeyPatch.context() as patch:
        on_call(patch, dying(call, stored=stored))
        rig.die()


def agrees(rig: Rig, done: task.Done, stored: int = 400) -> None:
    """Ledger and store tell the same: each message is there once, at the place that the ledger names."""
    rows = {row["seq"]: row for row in rig.rows()}
    assert len(rig.rows()) == len(rows) == done.rows == 400
    there = rig.stored()
    assert len(there) == stored
    assert set(there.values()) == {1}
    assert {row["id"] for row in rows.values() if row["outcome"] == ledger.PUBLISHED} <= there.keys()

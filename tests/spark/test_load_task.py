"""Tasks of a load that die and are tried again: nothing is published twice, and what cannot be known stays unknown."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from emq_data import Data

from emq import errors
from emq.app import App
from emq.producer import Producer
from emq.settings import Settings
from emq.storage import Trim
from emq.trail.sink import NullTrail

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

import pyarrow.parquet as pq

from spark import ledger, load_plan, load_sender, load_state, load_task, load_topics
from spark.load_replay import Survey

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

    def published(self, topic: str, group: int, priority: int, offsets: Any, ids: Any, *args: Any) -> None:
        if ids[0] not in self._ids:
            self._trail.published(topic, group, priority, offsets, ids, *args)


class Rig:
    """A load on one partition."""

    def __init__(self, data: Data, directory: Path, plan: str = PLAN, *, paced: bool = False) -> None:
        self.data = data
        self.directory = directory
        settings = Settings(**data.options)
        self.job = load_task.Job(load_plan.parse(plan), settings, str(directory), "run", 1, 1, paced)
        data.do(lambda app: load_topics.prepare(app, load_topics.needed(self.job.plan, Survey()), create=True))

    def run(self) -> load_task.Done:
        return load_task.run(self.job, 0)

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
        return Counter(m.id for topic in names for m in self.data.messages(topic.name))


@pytest.fixture
def rig(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(load_task, "FOUND_TAKES_S", 0.0)
    monkeypatch.setattr(load_task, "SEGMENT_ROWS", (50, 50))
    monkeypatch.setattr(load_sender, "LOOK_AFTER_S", (0.0,))
    monkeypatch.setattr(load_sender, "WAIT_S", 0.0)
    monkeypatch.setattr("spark.load_synthetic.MAX_STEP_S", 0.2)
    return Rig(data, tmp_path / "ledger")


Publish = Callable[..., Awaitable[list[str]]]


def on_call(monkeypatch: pytest.MonkeyPatch, act: Callable[..., Awaitable[list[str]]]) -> None:
    """Have `act` decide what becomes of each `publish_many`; it gets the number of the call."""
    real = Producer.publish_many
    calls = iter(range(1 << 30))

    async def publish_many(self: Producer, *args: Any, **kwargs: Any) -> list[str]:
        return await act(next(calls), real, self, args, kwargs)

    monkeypatch.setattr(Producer, "publish_many", publish_many)


def dying(after: int, *, stored: bool) -> Callable[..., Any]:
    """The process ends at that call: before it, or when the store has everything."""

    async def act(number: int, real: Publish, self: Any, args: Any, kwargs: Any) -> list[str]:
        if number == after and not stored:
            raise Died
        ids = await real(self, *args, **kwargs)
        if number == after:
            raise Died
        return ids

    return act


def agrees(rig: Rig, done: load_task.Done, stored: int = 400) -> None:
    """Ledger and store tell the same: each message is there once, at the place that the ledger names."""
    rows = {row["seq"]: row for row in rig.rows()}
    assert len(rig.rows()) == len(rows) == done.rows == 400
    there = rig.stored()
    assert len(there) == stored
    assert set(there.values()) == {1}
    assert {row["id"] for row in rows.values() if row["outcome"] == ledger.PUBLISHED} <= there.keys()


def test_an_undisturbed_task_publishes_every_message_once_and_says_where(rig: Rig) -> None:
    done = rig.run()
    agrees(rig, done)
    places = {(r["topic"], r["group"], r["priority"], r["offset"]) for r in rig.rows()}
    assert len(places) == 400
    assert all(r["outcome"] == ledger.PUBLISHED and r["sent_us"] <= r["answered_us"] for r in rig.rows())
    assert done.counts == {"t-1": {"published": 200}, "t-2": {"published": 200}}
    assert done.part.rows == 400
    state = load_state.state_of(rig.place, 0)
    assert state is not None
    assert state.ended


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("after", [0, 7, 30])
def test_a_task_that_is_tried_again_publishes_nothing_twice_and_leaves_nothing_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, after: int, stored: bool
) -> None:
    with monkeypatch.context() as patch:
        on_call(patch, dying(after, stored=stored))
        rig.die()
    done = rig.run()
    agrees(rig, done)
    assert sum(sum(counts.values()) for counts in done.counts.values()) == 400
    assert done.part.attempt == 1


def test_a_third_attempt_goes_by_both_before_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for after in (20, 9):
        with monkeypatch.context() as patch:
            on_call(patch, dying(after, stored=True))
            rig.die()
    done = rig.run()
    agrees(rig, done)
    assert (done.part.attempt, done.earlier > 0) == (2, True)


def test_what_was_consumed_before_anybody_looked_stays_unknown_and_is_not_published_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        on_call(patch, dying(30, stored=True))
        rig.die()
    before = rig.stored()

    async def trim(app: App) -> None:
        queues = [q for topic in await app.catalog.list() for q in topic.all_queues()]
        bounds = await app.store.log.bounds(queues)
        await app.store.log.trim([Trim(q, b.tail, None, seal=False) for q, b in zip(queues, bounds, strict=True)])

    rig.data.do(trim)
    done = rig.run()
    rows = rig.rows()
    unknown = [row for row in rows if row["outcome"] == ledger.UNKNOWN]
    assert len({row["seq"] for row in rows}) == len(rows) == 400
    assert unknown
    assert {row["id"] for row in unknown} == {None}
    assert not before.keys() & rig.stored().keys()
    known = {row["id"] for row in rows if row["outcome"] == ledger.PUBLISHED}
    assert len(before.keys() - known) + len(known) <= 400
    assert sum(counts.get("unknown", 0) for counts in done.counts.values()) == len(unknown)


@pytest.mark.parametrize("stored", [True, False])
def test_an_unknown_outcome_is_looked_up_and_never_published_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    async def act(number: int, real: Publish, self: Any, args: Any, kwargs: Any) -> list[str]:
        if number != 5:
            return await real(self, *args, **kwargs)
        if stored:
            sink, self._queues._trail = self._queues._trail, Deaf(self._queues._trail, kwargs["message_ids"])
            await real(self, *args, **kwargs)
            self._queues._trail = sink
        raise errors.OutcomeUnknown("the connection broke")

    on_call(monkeypatch, act)
    done = rig.run()
    unknown = [row for row in rig.rows() if row["outcome"] == ledger.UNKNOWN]
    assert bool(unknown) is not stored
    assert all("the connection broke" in row["error"] and row["id"] is None for row in unknown)
    agrees(rig, done, 400 - len(unknown))


def test_a_store_that_is_away_for_a_moment_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(number: int, real: Publish, self: Any, args: Any, kwargs: Any) -> list[str]:
        if number in (3, 4, 5):
            raise errors.StoreUnavailable("no answer")
        return await real(self, *args, **kwargs)

    on_call(monkeypatch, act)
    done = rig.run()
    agrees(rig, done)
    assert done.errors == {}


def test_what_the_store_does_not_take_is_refused_and_counted_with_its_error(data: Data, tmp_path: Path) -> None:
    rig = Rig(data, tmp_path / "ledger", PLAN.replace("20.0", "20.0, options = { max_length = 60 }"))
    done = rig.run()
    rows = rig.rows()
    refused = [row for row in rows if row["outcome"] == ledger.REFUSED]
    assert len(rows) == 400
    assert len(refused) == 400 - len(rig.stored()) > 0
    assert all(row["error"].startswith("TopicFull") for row in refused)
    assert sum(done.errors.values()) == len(refused)


def test_merged_and_delayed_messages_are_told_apart(data: Data, tmp_path: Path) -> None:
    plan = """
duration_s = 2
[[tenants]]
name = "merged"
qps = 100.0
duplicates = 0.5
topic = { kind = "range_merge", options = { time_range_ms = 60000 } }
[[tenants]]
name = "keyed"
qps = 100.0
duplicates = 0.5
payload = "number"
keys = 3
topic = { kind = "range_merge", options = { time_range_ms = 60000, merge = "key", fold = "sum" } }
[[tenants]]
name = "later"
qps = 100.0
delays = [{ share = 1.0, between_s = [60.0, 90.0] }]
[[tenants]]
name = "numbers"
qps = 50.0
numbers = [20, 30]
topic = { kind = "priority" }
"""
    rig = Rig(data, tmp_path / "ledger", plan)
    done = rig.run()
    counts = {topic: Counter(counts) for topic, counts in done.counts.items()}
    assert counts["merged"].total() == counts["keyed"].total() == counts["later"].total() == 200
    assert counts["merged"]["merged"] == pytest.approx(100, abs=25)
    assert counts["keyed"]["merged"] == pytest.approx(100, abs=40)
    assert counts["later"] == {"published": 200}
    assert counts["numbers"]["published"] == 100
    soon_ms = (time.time() + 50) * 1000
    assert all(row["due_ms"] > soon_ms for row in rig.rows() if row["topic"] == "later")
    waiting = rig.data.do(lambda app: app.planned("later", limit=1000))
    assert {entry.id for entry in waiting} == {row["id"] for row in rig.rows() if row["topic"] == "later"}


def test_an_attempt_that_was_taken_for_dead_ends_when_a_later_one_has_begun(rig: Rig) -> None:
    task = load_task.Task(rig.job, 0)
    rig.run()
    load_state.save(rig.place, load_state.State(0, 5, 1))
    with pytest.raises(errors.EMQError, match="attempt 5; attempt 0 ends"):
        asyncio.run(task.run())


def test_a_damaged_segment_of_an_earlier_attempt_ends_the_load(rig: Rig) -> None:
    rig.run()
    (rig.place / "part-0-0-0.parquet").write_bytes(b"PAR1")
    with pytest.raises(errors.EMQError, match=r"part-0-0-0\.parquet is damaged"):
        rig.run()


def test_a_paced_load_takes_its_time_and_ends_when_asked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, data: Data, tmp_path: Path
) -> None:
    paced = Rig(data, tmp_path / "other", PLAN.replace("= 4", "= 1"), paced=True)
    started = time.monotonic()
    done = paced.run()
    assert 0.9 < time.monotonic() - started < 10
    assert (done.stopped, len(paced.rows())) == (False, 100)

    saved = load_state.save

    def save(place: Path, state: load_state.State) -> None:
        saved(place, state)
        if state.begun >= 3:
            load_state.ask_to_stop(place)

    monkeypatch.setattr(load_state, "save", save)
    stopped = Rig(data, tmp_path / "third", PLAN.replace("= 4", "= 3600"), paced=True).run()
    assert stopped.stopped
    assert 0 < stopped.part.rows < 100

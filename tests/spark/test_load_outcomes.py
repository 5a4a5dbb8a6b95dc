"""What becomes of each message of a load, also where the store refuses, is away, or does not say."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from emq_data import Data

from emq.producer import Outcome, Producer
from emq.producer.delayed_messages import LaneProducer
from emq.runtime import errors
from emq.storage import message
from emq.trail.events import Published

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from load_rig import PLAN, Deaf, Publish, Rig, agrees, on_call

from emq_spark.load import ledger, sender
from emq_spark.load.batch import Batch
from emq_spark.load.recorder import Recorder


@pytest.mark.parametrize("stored", [True, False])
def test_an_unknown_outcome_is_looked_up_and_never_published_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    async def act(number: int, real: Publish, queues: Any, *call: Any) -> list[Outcome]:
        if number != 5:
            return await real(queues, *call)
        if stored:
            sink, queues._trail = queues._trail, Deaf(queues._trail, call[2].ids)
            await real(queues, *call)
            queues._trail = sink
        raise errors.OutcomeUnknown("the connection broke")

    on_call(monkeypatch, act)
    done = rig.run()
    unknown = [row for row in rig.rows() if row["outcome"] == ledger.UNKNOWN]
    assert bool(unknown) is not stored
    assert all("the connection broke" in row["error"] and row["id"] is not None for row in unknown)
    agrees(rig, done, 400 - len(unknown))


def test_a_store_that_is_away_for_a_moment_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(number: int, real: Publish, *call: Any) -> list[Outcome]:
        if number in (3, 4, 5):
            return [errors.StoreUnavailable("no answer")] * len(call[-1].ids)
        return await real(*call)

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


def test_a_message_that_does_not_fit_is_refused_without_its_neighbours(data: Data, tmp_path: Path) -> None:
    for n in (1, 2):
        data.create(f"t-{n}", max_payload=60)
    rig = Rig(data, tmp_path / "ledger", PLAN.replace("keys = 5", "payload_bytes = [40, 80]"))
    rig.run()
    refused = [row for row in rig.rows() if row["outcome"] == ledger.REFUSED]
    assert 100 < len(refused) == 400 - len(rig.stored()) < 300
    assert all(row["error"].startswith("InvalidMessage") for row in refused)


LATER = """
duration_s = 4
[[tenants]]
name = "t-{n}"
count = 2
qps = 100.0
delays = [{ share = 1.0, between_s = [60.0, 90.0] }]
"""


def test_what_was_told_before_the_outcome_became_unknown_is_published(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = LaneProducer._add, iter(range(1 << 30))

    async def add(self: LaneProducer, items: Any, durability: Any) -> Any:
        answers = await real(self, items, durability)
        if next(calls) in (2, 5):
            raise errors.OutcomeUnknown("the connection broke")
        return answers

    monkeypatch.setattr(LaneProducer, "_add", add)
    rig = Rig(data, tmp_path / "ledger", LATER)
    assert rig.run().errors == {}
    assert len({row["id"] for row in rig.rows()}) == 400
    assert {row["outcome"] for row in rig.rows()} == {ledger.PUBLISHED}


def test_a_delayed_message_in_doubt_is_not_added_again_once_it_may_have_been_started(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "LOOK_AFTER_S", (0.0,))
    real, tries = Producer.publish, Counter[str]()

    async def publish(self: Producer, *args: Any, **kwargs: Any) -> str:
        name = kwargs["message_id"]
        tries[name] += 1
        if name != "run.0.5":
            return await real(self, *args, **kwargs)
        if tries[name] == 1:
            raise errors.OutcomeUnknown("the connection broke")
        # So long did this call take.
        monkeypatch.setattr(sender, "SAFE_S", 1e6)
        raise errors.StoreUnavailable("no answer")

    monkeypatch.setattr(Producer, "publish", publish)
    rig = Rig(data, tmp_path / "ledger", LATER)
    rig.run()
    assert tries["run.0.5"] == 2
    [unknown] = [row for row in rig.rows() if row["outcome"] != ledger.PUBLISHED]
    assert (unknown["seq"], unknown["outcome"]) == (5, ledger.UNKNOWN)
    assert "the connection broke" in unknown["error"]


def test_a_message_that_moves_to_another_lane_counts_once(tmp_path: Path) -> None:
    writer = ledger.Writer(tmp_path, "run", 0, 0)
    recorder = Recorder(writer)
    recorder.expect(Batch("t", [0], [b""], ["a"], due_s=[9.0]), ["a"], slots=False)
    for group in (3, 1):
        recorder.record(Published(2, "t", group, ["a"], 0, 1, keys=[None], due_ms=[9_000]))
    recorder.flush()
    assert writer.close().rows == 1


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
    later = {message.label(row["id"]) for row in rig.rows() if row["topic"] == "later"}
    assert {entry.id for entry in waiting} == later

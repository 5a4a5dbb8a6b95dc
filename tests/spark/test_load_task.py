"""Tasks of a load that die and are tried again: nothing is published twice, and what cannot be known stays unknown."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from emq_data import Data

from emq.app import App
from emq.producer import Outcome
from emq.runtime import errors
from emq.storage import message
from emq.storage.log_store import Trim

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from load_rig import PLAN, Publish, Rig, agrees, die_at, dying, on_call

from emq_spark.load import ledger, ledger_reading
from emq_spark.load import state as load_state
from emq_spark.load import task as load_task


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
    rig: Rig, after: int, stored: bool
) -> None:
    die_at(rig, after, stored=stored)
    done = rig.run()
    agrees(rig, done)
    assert sum(sum(counts.values()) for counts in done.counts.values()) == 400
    assert done.part.attempt == 1


def test_a_third_attempt_goes_by_both_before_it(rig: Rig) -> None:
    for after in (20, 9):
        die_at(rig, after)
    done = rig.run()
    agrees(rig, done)
    assert (done.part.attempt, done.earlier > 0) == (2, True)


@pytest.mark.parametrize("again", [0, 1, 2])
def test_an_attempt_that_dies_while_it_clears_up_leaves_nothing_to_be_published_twice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    monkeypatch.setattr(load_task, "SEGMENT_ROWS", (150, 150))
    full = dying(24, stored=True)

    async def act(number: int, real: Publish, *call: Any) -> list[Outcome]:
        if number in (17, 18, 19):
            # Published only by the attempt that follows, behind what lies there already.
            raise errors.TopicFull("full")
        return await full(number, real, *call)

    with monkeypatch.context() as patch:
        on_call(patch, act)
        rig.die()
    die_at(rig, again)
    agrees(rig, rig.run())


def test_a_segment_of_an_attempt_that_died_is_missed(rig: Rig) -> None:
    die_at(rig, 30)
    done = rig.run()
    ledger.write_run(rig.directory, ledger.Run("run", 1, "", 0, 1, complete=True, parts=(done.part,)))
    assert ledger_reading.find(rig.directory).flaws == ()
    (rig.place / "part-0-0-0.parquet").unlink()
    [flaw] = ledger_reading.find(rig.directory).flaws
    assert "partition 0, attempt 0: 1 segment is missing or unreadable (numbers 0)" in flaw


def test_what_was_consumed_before_anybody_looked_stays_unknown_and_is_not_published_again(rig: Rig) -> None:
    die_at(rig, 30)
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
    labels = {message.label(uid) for uid in before}
    assert all(row["id"] in labels and row["offset"] is None for row in unknown)
    assert not before.keys() & rig.stored().keys()
    known = {row["id"] for row in rows if row["outcome"] == ledger.PUBLISHED}
    assert len(before.keys() - known) + len(known) <= 400
    assert sum(counts.get("unknown", 0) for counts in done.counts.values()) == len(unknown)


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

"""Loads whose queues do not stay: an attempt that is repeated fails by name, and publishes nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emq_data import Data

from emq.app import App
from emq.producer import Outcome
from emq.runtime import errors
from emq.storage import message
from emq.storage.log_store import Trim
from emq.topics import changing

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

import replaced_store
from load_rig import Publish, Rig, agrees, die_at, dying, on_call
from replaced_store import Replaced

from emq_spark.load import incarnations, ledger

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.fixture
def redis_store(tmp_path: Path) -> Iterator[Replaced]:
    yield from replaced_store.on_redis(tmp_path)


def fails(rig: Rig, text: str) -> None:
    """The next attempt publishes nothing, and says in one line why and what to do; so does the one after."""
    before = rig.stored()
    for _ in range(2):
        with pytest.raises(errors.EMQError, match=f"{text}.*; load under another run id$") as told:
            rig.run()
        assert "\n" not in str(told.value)
    assert rig.stored() == before


def test_an_attempt_over_an_emptied_store_fails_by_name(store: Replaced, tmp_path: Path) -> None:
    rig = Rig(store.data, tmp_path / "ledger")
    die_at(rig, 30)
    store.lose()
    store.data.publish("t-1", range(2000), priority="low")  # the queues have grown past what the load had published
    fails(rig, r"queue 't-[12]/\d/\w+' was lost with its store and made again since it was published to")


def test_a_store_that_is_emptied_within_an_attempt_is_noticed_by_the_next_one(
    redis_store: Replaced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(redis_store.data, tmp_path / "ledger")

    async def act(number: int, real: Publish, *call: Any) -> list[Outcome]:
        if number == 20:
            redis_store.lose()
        return await dying(35, stored=True)(number, real, *call)

    with monkeypatch.context() as patch:
        on_call(patch, act)
        rig.die()
    assert rig.stored()
    fails(rig, "was lost with its store and made again")


def test_an_emptied_store_is_noticed_before_the_first_segment_is_written(
    store: Replaced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq_spark.load.task.SEGMENT_ROWS", (10_000, 10_000))
    rig = Rig(store.data, tmp_path / "ledger")
    die_at(rig, 30)
    assert not rig.rows()
    store.lose()
    fails(rig, "was lost with its store and made again")


def test_queues_that_were_there_before_a_load_are_known_before_its_first_publish(
    store: Replaced, tmp_path: Path
) -> None:
    rig = Rig(store.data, tmp_path / "ledger")
    for topic in ("t-1", "t-2"):
        for priority in ("high", "low"):
            store.data.publish(topic, range(50), priority=priority)
    die_at(rig, 0)
    store.lose()
    fails(rig, "was lost with its store and made again")


@pytest.mark.parametrize("grown", [False, True])
def test_an_attempt_over_a_restored_store_fails_by_name(store: Replaced, tmp_path: Path, grown: bool) -> None:
    rig = Rig(store.data, tmp_path / "ledger")
    die_at(rig, 12)
    restore = store.keep()
    die_at(rig, 20)
    restore()
    if grown:
        for topic in ("t-1", "t-2"):
            for priority in ("high", "low"):
                store.data.publish(topic, range(500), priority=priority)
        fails(rig, r"queue 't-[12]/\d/\w+' has another message at offset \d+ than was published there: its store")
    else:
        fails(rig, r"queue 't-[12]/\d/\w+' has lost its messages from offset \d+ to \d+ since they were published")


def test_an_attempt_over_a_topic_that_was_made_again_fails_by_name(rig: Rig) -> None:
    die_at(rig, 30)

    async def make_again(app: App) -> None:
        topic = await app.catalog.get("t-2")
        await app.admin.delete(topic.name, force=True)
        await app.create_topic(topic.name, topic.qps, group_qps=50, priorities=topic.priorities)

    rig.data.do(make_again)
    fails(rig, "topic 't-2' was deleted since it was published to")


def test_messages_in_groups_that_a_topic_has_no_more_are_not_published_again(rig: Rig) -> None:
    """They were consumed there, as nobody can see in the topic's other groups."""
    die_at(rig, 30)
    before = {message.label(uid) for uid in rig.stored()}

    async def shrink(app: App) -> None:
        for name in ("t-1", "t-2"):
            groups = (await app.catalog.get(name)).groups
            topic = await app.admin.update(name, group_qps=100)
            dropped = [topic.queue(g, p) for g in range(1, groups) for p in range(len(topic.priorities))]
            bounds = await app.store.log.bounds(dropped)
            await app.store.log.trim([Trim(q, b.tail, None, seal=True) for q, b in zip(dropped, bounds, strict=True)])
            assert (await app.catalog.change(name, changing.retired)).groups == 1

    rig.data.do(shrink)
    there = rig.stored()
    rig.run()
    rows = rig.rows()
    assert len(rows) == len({row["seq"] for row in rows}) == 400
    new = {message.label(uid) for uid in rig.stored().keys() - there.keys()}
    assert not new & before
    unknown = {row["id"] for row in rows if row["outcome"] == ledger.UNKNOWN}
    assert unknown & before


def test_a_ledger_without_notes_of_its_queues_is_gone_on_with(rig: Rig) -> None:
    die_at(rig, 30)
    [notes] = rig.place.glob("_queues-*")
    notes.unlink()
    agrees(rig, rig.run())


def test_a_store_that_is_away_while_incarnations_are_asked_for_fails_no_load(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = incarnations.bounds_of, iter(range(1 << 30))

    async def bounds_of(*call: Any) -> Any:
        if next(calls) in (1, 2):  # around the first slice; call 0 is at the begin
            raise errors.StoreUnavailable("no answer")
        return await real(*call)

    monkeypatch.setattr(incarnations, "bounds_of", bounds_of)
    die_at(rig, 30)
    agrees(rig, rig.run())


def test_each_queue_written_to_has_its_incarnation_noted(data: Data, tmp_path: Path) -> None:
    rig = Rig(data, tmp_path / "ledger")
    rig.run()
    learned = incarnations.load_state.read(rig.place / "_queues-0-0.json", incarnations.Learned)
    assert learned is not None
    written = {f"{row['topic']}/{row['group']}/{('high', 'low')[row['priority']]}" for row in rig.rows()}
    assert written <= {queue for queue, made in learned.made.items() if made}

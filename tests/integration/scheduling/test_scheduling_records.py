"""Records of tasks: how they get into the database, what they tell and prove, and when they leave it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from emq.database import Database, batch_writer
from emq.runtime import errors
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.pools.catalog import PoolCatalog
from emq_scheduling.records import ends, retention
from emq_scheduling.records.cancels import Cancels
from emq_scheduling.records.ends import End, EndLog
from emq_scheduling.records.records import Attempt, Records, TaskStatus
from emq_scheduling.records.retention import Retention
from emq_scheduling.records.snapshot import PoolState, Snapshot, TypeView
from emq_scheduling.records.snapshots import Snapshots
from emq_scheduling.records.verifying import verify
from support.manual_clock import ManualClock
from support.waiting import until

NOW_US = 1_700_000_000_000_000
COSTS = {"requests": 1.0, "tokens": 250.5}


def end(task: str = "t1", outcome: str = ends.DONE, started_s: float = 1.0, took_s: float = 0.5, **fields: Any) -> End:
    started_us = NOW_US + round(started_s * 1e6)
    given: dict[str, Any] = {
        "pool": "sms",
        "task": task,
        "type": "code",
        "tenant": "",
        "key": "",
        "submitted_us": NOW_US,
        "started_us": started_us,
        "resource": "acme-1",
        "version": 3,
        "costs": COSTS,
        "outcome": outcome,
        "ended_us": 0 if outcome == ends.RUNNING else started_us + round(took_s * 1e6),
    }
    return End(**{**given, **fields})


@pytest.fixture
def records(database: Database, environment: str) -> Records:
    return Records(database, environment)


@pytest.fixture
def log(database: Database, environment: str) -> EndLog:
    return EndLog(lambda: database, environment, lambda: "host-1")


async def written(log: EndLog, *given: End) -> None:
    for each in given:
        log.add(each)
    await log.flush()


async def status(records: Records, pool: str, task: str) -> TaskStatus:
    found = await records.find(pool, task)
    assert found is not None
    return found


async def all_of(records: Records, *span: int) -> list[Attempt]:
    return [each async for page in records.all("sms", *span) for each in page]


# ------------------------------------------------------------------------------------------------------------ writing


async def test_a_record_says_exactly_what_was_charged_and_when(log: EndLog, records: Records) -> None:
    actual = {"tokens": 300.25}
    given = end(actual=actual, error="slow", result=b"x" * 5000, key="k", tenant="shop", attempt=2, deadline_us=9)
    await written(log, given)
    [found] = (await status(records, "sms", "t1")).attempts
    expected = {name: getattr(given, name) for name in End.__struct_fields__ if name != "pool"}
    told = {name: getattr(found, name) for name in expected}
    assert told == expected | {"result": b"x" * 4096}
    assert (found.host, found.wait_s) == ("host-1", 1.0)


async def test_records_get_written_soon_and_the_last_ones_at_the_end(log: EndLog, records: Records) -> None:
    async with log.running():
        log.add(end("early"))
        await until(lambda: not log.waiting)
        assert (await status(records, "sms", "early")).state == "done"
        log.add(end("late"))
    assert (await status(records, "sms", "late")).state == "done"


async def test_writing_a_record_again_changes_nothing(log: EndLog, records: Records) -> None:
    await written(log, end(outcome=ends.RUNNING), end(), end(), end(outcome=ends.RUNNING))
    [found] = await all_of(records)
    assert (found.outcome, found.ended_us) == ("done", found.started_us + 500_000)


async def test_a_host_that_goes_on_does_not_replace_what_its_successor_noted(log: EndLog, records: Records) -> None:
    await written(log, end(outcome=ends.RUNNING))
    await records.give_up_running("sms", NOW_US + 9)
    await written(log, end())
    assert [(each.outcome, each.ended_us) for each in await all_of(records)] == [("lost", NOW_US + 9)]


async def test_a_record_that_no_table_takes_keeps_no_other_out(
    log: EndLog, records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    await written(log, end("a"), end("bad", started_us=1 << 70), end("b"))
    assert [each.task for each in await all_of(records)] == ["a", "b"]
    assert (log.written, log.refused) == (2, 1)
    assert "'bad'" in caplog.text


async def test_texts_that_a_database_cannot_hold_are_recorded_all_the_same(log: EndLog, records: Records) -> None:
    await written(log, end(error="a\0b\ud800" + "x" * 2000, key="k\0"))
    [found] = await all_of(records)
    assert found.error.startswith("a\ufffdb?x")
    assert len(found.error) == ends.ERROR_CHARS
    assert found.key == "k\ufffd"


class Away:
    """A database that takes nothing while it is away."""

    def __init__(self, database: Database, failure: Exception | None = None) -> None:
        self._database = database
        self._failure = failure or errors.DatabaseUnavailable("away")
        self.is_away = True

    async def run(self, *args: Any, **named: Any) -> Any:
        if self.is_away:
            raise self._failure
        return await self._database.run(*args, **named)


@pytest.mark.parametrize("failure", [errors.DatabaseUnavailable("away"), ValueError("x")], ids=["away", "odd"])
async def test_while_the_database_is_away_nothing_is_dropped_and_a_full_log_pushes_back(
    failure: Exception, database: Database, environment: str, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_writer, "AGAIN_S", 0.01)
    away = Away(database, failure)
    log = EndLog(lambda: away, environment, lambda: "host-1", most=5)  # type: ignore[arg-type, return-value]
    async with log.running():
        for i in range(4):
            log.add(end(f"t{i}", started_s=i))
        assert not log.is_full
        log.add(end("t4", started_s=4))
        assert log.is_full
        log.add(end("t5", started_s=5))
        waiting = asyncio.create_task(log.room())
        await asyncio.sleep(0.5)
        assert not waiting.done()
        away.is_away = False
        async with asyncio.timeout(10):
            await waiting
        assert not log.is_full
    assert [each.task for each in await all_of(records)] == [f"t{i}" for i in range(6)]


async def test_records_that_a_lost_database_never_took_are_told_at_the_end(
    database: Database, environment: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batch_writer, "CLOSE_S", 0.1)
    log = EndLog(lambda: Away(database), environment, lambda: "host-1")  # type: ignore[arg-type, return-value]
    with caplog.at_level(logging.WARNING):
        async with log.running():
            log.add(end())
    assert "1 record of a task lost: the database is away" in caplog.text


# ------------------------------------------------------------------------------------------------------------ reading


async def test_the_state_of_a_task_follows_from_its_rows(log: EndLog, records: Records) -> None:
    assert await records.find("sms", "t1") is None
    for i, (outcome, state) in enumerate(
        [("running", "running"), ("failed", "waiting"), ("running", "running"), ("lost", "waiting"), ("dead", "dead")]
    ):
        await written(log, end(outcome=outcome, started_s=i, attempt=i + 1))
        assert (await status(records, "sms", "t1")).state == state
    assert [each.attempt for each in (await status(records, "sms", "t1")).attempts] == [1, 2, 3, 4, 5]


async def test_a_task_that_ended_without_a_start_is_recorded_when_it_ended(log: EndLog, records: Records) -> None:
    await written(log, end(outcome=ends.EXPIRED, started_us=0, ended_us=NOW_US + 7, resource="", costs={}, attempt=0))
    [found] = (await status(records, "sms", "t1")).attempts
    assert (found.started_us, found.outcome, found.resource) == (NOW_US + 7, "expired", "")


async def test_all_rows_come_in_order_of_starts_page_by_page(
    log: EndLog, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq_scheduling.records.records.PAGE", 3)
    await written(log, *(end(f"t{i}", started_s=7 - i // 2) for i in range(8)))
    found = await all_of(records)
    assert [each.task for each in found] == ["t6", "t7", "t4", "t5", "t2", "t3", "t0", "t1"]
    assert [each.task for each in await all_of(records, NOW_US + 5_000_000, NOW_US + 7_000_000)] == [
        *("t4", "t5", "t2", "t3")
    ]
    assert [each.task for each in await records.latest("sms", limit=2)] == ["t1", "t0"]
    assert await records.latest("sms", resource="other") == []
    assert len(await records.latest("sms", task_type="code", before_us=NOW_US + 5_000_000)) == 2


async def test_the_latest_go_on_after_a_row_and_are_chosen_by_their_outcome(log: EndLog, records: Records) -> None:
    await written(log, *(end(f"t{i}", started_s=1) for i in range(3)), end("other", ends.FAILED, started_s=2))
    assert [each.task for each in await records.latest("sms", outcome="failed")] == ["other"]
    rest = await records.latest("sms", before_us=NOW_US + 1_000_000, before_task="t2")
    assert [each.task for each in rest] == ["t1", "t0"], "of equal starts the rest, none twice"


async def test_what_ran_on_a_host_that_is_gone_is_noted_as_lost(log: EndLog, records: Records) -> None:
    await written(log, end("gone", ends.RUNNING), end("there"), end("other", ends.RUNNING, pool="voice"))
    assert await records.give_up_running("sms", NOW_US + 9) == 1
    assert await records.give_up_running("sms", NOW_US + 9) == 0
    assert (await status(records, "sms", "gone")).state == "waiting"
    assert (await status(records, "voice", "other")).state == "running"


# ------------------------------------------------------------------------------------------------------------ cancels


async def test_a_cancelled_task_without_records_is_known_as_asked_for(
    database: Database, environment: str, records: Records
) -> None:
    await Cancels(database, environment).ask("sms", ["t1"])
    found = await status(records, "sms", "t1")
    assert (found.state, found.cancel_asked) == ("unknown", True)


# ---------------------------------------------------------------------------------------------------------- snapshots


async def test_the_latest_snapshot_of_a_pool_is_kept(database: Database, environment: str) -> None:
    snapshots = Snapshots(database, environment)
    assert await snapshots.load("sms") is None
    first = Snapshot("sms", 1, "host-1", PoolState(10.0, waiting={"code": 3}), types={"code": TypeView(waiting=3)})
    later = msgspec.structs.replace(first, state=PoolState(20.0))
    await snapshots.save(first)
    assert await snapshots.load("sms") == first
    await snapshots.save(later)
    await snapshots.save(first)
    assert await snapshots.all() == {"sms": later}
    assert (later.is_stale(25.0), later.is_stale(31.0)) == (False, True)
    await snapshots.drop("sms")
    assert await snapshots.load("sms") is None


# ---------------------------------------------------------------------------------------------------------- retention


async def test_what_is_too_old_goes_and_nothing_else(
    database: Database, environment: str, log: EndLog, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS", 2)
    catalog, cancels = PoolCatalog(database, environment), Cancels(database, environment)
    now = [NOW_US]
    monkeypatch.setattr(database, "clock_us", lambda _: now[0])
    for i in range(4):
        now[0] = NOW_US + i * 1_000_000
        await catalog.put(Pool("sms", types={f"t{i}": TaskType()}))
        await cancels.ask("sms", [f"c{i}"])
    await written(log, *(end(f"t{i}", started_s=i) for i in range(6)))
    clock = ManualClock(NOW_US / 1e6 + 100 + 2.5)
    trimmed = Retention(lambda: database, environment, clock, kept_s=100)
    assert await trimmed.trim() == 3 + 2
    assert [each.task for each in await all_of(records)] == ["t3", "t4", "t5"]
    assert len(await cancels.latest("sms", 9)) == 4, "what they are about may wait for longer"
    # Version 3 held until version 4 came, which is not too old.
    assert list(await catalog.history("sms")) == [3, 4]
    clock.advance(700)
    await trimmed.trim()
    assert list(await cancels.latest("sms", 9)) == ["c3"]


async def test_one_host_at_a_time_has_the_turn(database: Database, environment: str) -> None:
    clock = ManualClock(NOW_US / 1e6)
    first, second = (Retention(lambda: database, environment, clock) for _ in range(2))
    assert await first.has_turn()
    assert not await second.has_turn()
    clock.advance(Retention.EVERY_S + 1)
    assert await second.has_turn()


@pytest.fixture(autouse=True)
async def _no_turn_left(database: Database, environment: str) -> AsyncIterator[None]:
    yield
    await database.run(lambda c: c.exec_driver_sql(f"DELETE FROM emq_meta WHERE environment = '{environment}'"))


# --------------------------------------------------------------------------------------------------------------- proofs


@pytest.fixture
async def two_versions(database: Database, environment: str) -> None:
    """The pool is in the catalog: its version 1 allows 2 starts a second, version 2 allows 1."""
    catalog = PoolCatalog(database, environment)
    for amount in (2, 1):
        resource = Resource(limits=(Limit("requests", amount, "second"),), takes={"code": {}})
        await catalog.put(Pool("sms", resources={"acme-1": resource}, types={"code": TaskType()}))


@pytest.mark.usefixtures("two_versions")
async def test_what_kept_to_its_limits_is_proved(
    database: Database, environment: str, log: EndLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq_scheduling.records.records.PAGE", 2)
    first = [end("a", started_s=1, version=1), end("b", ends.FAILED, 1.5, version=1)]
    await written(log, *first, end("b", started_s=2, attempt=2, version=2), end("c", ends.EXPIRED, resource=""))
    counted: list[int] = []
    proof = await verify(database, environment, "sms", counted.append)
    assert proof.holds
    assert (proof.attempts, proof.over_s, proof.ended_twice, proof.unproven) == (3, 0, 0, 0)
    assert proof.since_us == first[0].started_us
    assert proof.outcomes == {"done": 2, "expired": 1, "failed": 1}
    [limit] = proof.limits
    assert (limit.starts, limit.peak, limit.amount) == (3, 2, 2)
    assert counted == [2, 4]


@pytest.mark.usefixtures("two_versions")
async def test_a_task_that_ended_twice_is_named(database: Database, environment: str, log: EndLog) -> None:
    await written(log, end("a", started_s=1), end("a", started_s=9), end("b", started_s=5))
    # The same id in another type, or a retry, is not a second end.
    await written(log, end("b", started_s=3, type="other"), end("b", ends.FAILED, started_s=4))
    proof = await verify(database, environment, "sms")
    assert (proof.ended_twice, list(proof.twice), proof.holds) == (1, ["a"], False)

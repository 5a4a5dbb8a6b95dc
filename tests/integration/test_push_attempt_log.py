"""Records of attempts: how they get into the database, and when they leave it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

import emq
from emq.database import Database
from emq.observe.metrics import exposition, host_families
from emq.runtime import errors
from emq_push.attempt_log import BATCH, AttemptLog
from emq_push.attempts import EXPIRED, Attempt
from emq_push.cli.pushing import _Surroundings
from emq_push.records import schema, tables
from emq_push.retention import DEFAULT_S, ROWS, Retention
from support.manual_clock import ManualClock
from support.scraped import Scraped
from support.waiting import until

NOW_S = 1_700_000_000.0
DAY_S = 86_400


# ----------------------------------------------------------------------------------------------------------------- log


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    url = f"sqlite:///{tmp_path}/emq.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    found = await Database.open(url)
    await schema.ensure(found)
    yield found
    for table in (tables.attempts, tables.deliveries, tables.tenants):
        await found.run(lambda c, table=table: c.execute(sa.delete(table).where(table.c.environment == environment())))
    await found.close()


def exist(topics: Sequence[str]) -> Callable[[Sequence[str]], Awaitable[list[str]]]:
    """Return a catalog in which these topics exist."""

    async def known(names: Sequence[str]) -> list[str]:
        return [name for name in names if name in topics]

    return known


def environment() -> str:
    return f"push-{os.getpid()}"


def attempt(
    message: str, number: int = 1, outcome: str = "delivered", at_s: float = NOW_S, **fields: object
) -> Attempt:
    status = 204 if outcome == "delivered" else 500
    reason = "" if outcome == "delivered" else f"HTTP {status}"
    topic = str(fields.pop("topic", "shop.ep_1"))
    return Attempt(topic, message, number, int(at_s * 1e6), 5000, status, outcome, reason, "body", **fields)  # type: ignore[arg-type]


async def rows(database: Database, table: sa.Table) -> list[sa.Row[tuple[object, ...]]]:
    where = table.c.environment == environment()
    order = list(table.primary_key.columns)
    return await database.run(lambda c: list(c.execute(sa.select(table).where(where).order_by(*order))))


async def add_deliveries(database: Database, *messages: str, topic: str = "shop.ep_1", **fields: object) -> None:
    values = [
        {
            "environment": environment(),
            "topic": topic,
            "message": message,
            "tenant": topic.partition(".")[0],
            "created_us": int(NOW_S * 1e6),
            "state": "pending",
            "attempts": 0,
            "status": 0,
            "reason": "",
            "next_us": 0,
            "settled_us": 0,
            **fields,
        }
        for message in messages
    ]
    await database.run(lambda c: c.execute(sa.insert(tables.deliveries), values))


@asynccontextmanager
async def logging_to(database: Database) -> AsyncIterator[AttemptLog]:
    log = AttemptLog(lambda: database, environment(), lambda: "host-1")
    async with log.running():
        yield log


async def test_attempts_and_deliveries_are_written_in_batches(database: Database) -> None:
    await add_deliveries(database, "a", "b", "c", "d")
    async with logging_to(database) as log:
        log.attempted(attempt("a", 1, "retry", next_us=77))
        log.attempted(attempt("b", 1, "retry", NOW_S))
        log.attempted(attempt("b", 2, "dead", NOW_S + 10))
        log.attempted(attempt("c", 1, "parked"))
        log.attempted(attempt("d"))
        log.attempted(attempt("of no delivery"))
        await until(lambda: log.written >= 6)
    found = {row.message: row for row in await rows(database, tables.deliveries)}
    assert [(found[m].state, found[m].attempts, found[m].next_us) for m in "abcd"] == [
        ("pending", 1, 77),
        ("dead", 2, 0),
        ("pending", 0, 0),
        ("delivered", 1, 0),
    ]
    assert found["d"].settled_us == int(NOW_S * 1e6) + 5000
    assert found["a"].reason == "HTTP 500"
    kept = await rows(database, tables.attempts)
    assert len(kept) == 6
    assert {row.host for row in kept} == {"host-1"}
    assert {row.answer for row in kept} == {"body"}


async def test_an_older_attempt_changes_no_newer_state(database: Database) -> None:
    await add_deliveries(database, "a", state="delivered", attempts=3)
    await add_deliveries(database, "b", attempts=3, reason="newer")
    async with logging_to(database) as log:
        log.attempted(attempt("a", 2, "retry"))
        log.attempted(attempt("b", 2, "retry"))
    found = {row.message: row for row in await rows(database, tables.deliveries)}
    assert (found["a"].state, found["a"].attempts) == ("delivered", 3)
    assert (found["b"].reason, found["b"].attempts) == ("newer", 3)


async def test_an_expired_delivery_is_dead_with_the_attempts_that_were_made(database: Database) -> None:
    await add_deliveries(database, "a", "b")
    await add_deliveries(database, "late", state="delivered", attempts=1)
    async with logging_to(database) as log:
        log.attempted(attempt("b", 1, "retry", next_us=77))
    async with logging_to(database) as log:
        for message, number in (("a", 1), ("b", 2), ("late", 1)):
            log.attempted(Attempt("shop.ep_1", message, number, int(NOW_S * 1e6), 0, 0, EXPIRED, "expired"))
    found = {row.message: row for row in await rows(database, tables.deliveries)}
    ends = [(found[m].state, found[m].attempts, found[m].status, found[m].next_us) for m in ("a", "b", "late")]
    assert ends == [("dead", 0, 0, 0), ("dead", 1, 500, 0), ("delivered", 1, 0, 0)]
    assert (found["b"].reason, found["b"].settled_us) == ("expired", int(NOW_S * 1e6))
    assert [row.message for row in await rows(database, tables.attempts)] == ["b"], "no attempt was made"


async def test_what_was_written_with_an_unknown_outcome_is_written_again_without_harm(database: Database) -> None:
    async with logging_to(database) as log:
        log.attempted(attempt("a"))
    async with logging_to(database) as log:
        log.attempted(attempt("a"))
    assert len(await rows(database, tables.attempts)) == 1


async def test_no_record_is_lost_unseen_while_the_database_is_away(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await Database.open("sqlite://")
    real, away = database.run, True

    async def run(*args: object, **kwargs: object) -> object:
        if away:
            raise errors.DatabaseUnavailable("away")
        return await real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(database, "run", run)
    monkeypatch.setattr("emq.database.batch_writer.AGAIN_S", 0.05)
    log = AttemptLog(lambda: database, environment(), lambda: "host-1", most=100)
    async with log.running():
        for i in range(150):
            log.attempted(attempt(f"m{i:03d}"))
        await asyncio.sleep(0.8)
        assert (log.written, log.lost) == (0, 50)
        away = False
        await until(lambda: log.written >= 100)
    assert [r.message for r in await rows(database, tables.attempts)] == [f"m{i:03d}" for i in range(100)]
    told = [record.message for record in caplog.records if "records of attempts" in record.message]
    assert told == [
        "100 records of attempts wait for the database; later ones are lost until it takes them, and deliveries go on: "
        "bring the database back",
        "records of attempts wait: away",
        "records of attempts are written again; lost so far: 50",
    ]
    await database.close()


async def test_many_attempts_are_written_at_once_and_the_rest_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emq_push.attempt_log.FLUSH_S", 3_600.0)
    database = await Database.open("sqlite://")
    async with logging_to(database) as log:
        for i in range(BATCH + 10):
            log.attempted(attempt(f"m{i}"))
        await until(lambda: log.written)
    assert len(await rows(database, tables.attempts)) == BATCH + 10
    await database.close()


# ----------------------------------------------------------------------------------------------------------- retention


def retention(database: Database, topics: Sequence[str], now_s: float) -> Retention:
    return Retention(lambda: database, environment(), exist(topics), ManualClock(now_s))


async def test_records_leave_when_their_tenant_keeps_them_no_longer(database: Database) -> None:
    now_s = NOW_S + 100 * DAY_S
    body = json.dumps({"settings": {"qps": 1.0, "log_retention_s": 3 * DAY_S}})
    tenant = {"environment": environment(), "tenant": "short", "body": body, "created_us": 0, "changed_us": 0}
    await database.run(lambda c: c.execute(sa.insert(tables.tenants).values(tenant)))
    topics = ["short.ep_1", "other.ep_1"]
    async with logging_to(database) as log:
        for topic in topics:
            for days in (1, 5, 29, 31):
                await add_deliveries(
                    database,
                    f"settled-{days}",
                    topic=topic,
                    state="dead",
                    created_us=int((now_s - days * DAY_S) * 1e6) - 1,
                    settled_us=int((now_s - days * DAY_S) * 1e6),
                )
                log.attempted(attempt(f"m-{days}", at_s=now_s - days * DAY_S, topic=topic))
            await add_deliveries(database, "waits", topic=topic)
        log.attempted(attempt("m", at_s=NOW_S, topic="gone.ep_1"))
        for i in range(ROWS + 10):
            log.attempted(attempt(f"many-{i}", at_s=NOW_S + i, topic="other.ep_1"))
    assert await retention(database, topics, now_s).trim() == 3 + 3 + 1 + 1 + 1 + ROWS + 10
    left = sorted((row.topic, row.message) for row in await rows(database, tables.attempts))
    assert left == [("other.ep_1", "m-1"), ("other.ep_1", "m-29"), ("other.ep_1", "m-5"), ("short.ep_1", "m-1")]
    kept = {(row.topic, row.message) for row in await rows(database, tables.deliveries)}
    assert ("short.ep_1", "settled-5") not in kept
    assert ("other.ep_1", "settled-29") in kept
    assert {("short.ep_1", "waits"), ("other.ep_1", "waits")} <= kept
    assert DEFAULT_S == 30 * DAY_S


async def test_what_belongs_to_a_message_that_still_waits_stays(database: Database) -> None:
    old = {"created_us": int(NOW_S * 1e6), "settled_us": int(NOW_S * 1e6)}
    topics = [f"late{os.getpid()}.ep_{i}" for i in range(2)]
    await add_deliveries(database, "waits", "over", topic=topics[0])
    await add_deliveries(database, "waits", "over", topic=topics[1], state="delivered", **old)
    async with logging_to(database) as log:
        for topic in topics:
            for id_ in ("waits", "over"):
                log.attempted(attempt(id_, at_s=NOW_S, topic=topic, outcome="retry"))
    over = (tables.deliveries.c.topic == topics[0]) & (tables.deliveries.c.message == "over")
    await database.run(lambda c: c.execute(sa.update(tables.deliveries).where(over).values(state="dead", **old)))
    for names in (topics, []):  # also where the catalog has forgotten them
        await retention(database, names, NOW_S + 99 * DAY_S).trim()
    kept = [(row.topic, row.message) for row in await rows(database, tables.deliveries) if row.topic in topics]
    assert kept == [(topic, "waits") for topic in topics]
    left = [(row.topic, row.message) for row in await rows(database, tables.attempts) if row.topic in topics]
    assert left == [(topic, "waits") for topic in topics]


async def test_a_damaged_row_of_a_tenant_is_told_and_stops_no_other(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    tenant = {"environment": environment(), "tenant": "damaged", "body": "{", "created_us": 0, "changed_us": 0}
    await database.run(lambda c: c.execute(sa.insert(tables.tenants).values(tenant)))
    async with logging_to(database) as log:
        log.attempted(attempt("m", at_s=NOW_S, topic="other.ep_1"))
    assert await retention(database, ["other.ep_1"], NOW_S + 31 * DAY_S).trim() == 1
    assert "tenant damaged: its row cannot be read" in caplog.text


async def test_old_records_leave_where_no_tenant_is_left(database: Database) -> None:
    async with logging_to(database) as log:
        log.attempted(attempt("m", at_s=NOW_S, topic="gone.ep_1"))
    assert [await retention(database, [], NOW_S + 31 * DAY_S).trim() for _ in range(2)] == [1, 0]


async def test_one_host_at_a_time_looks_for_old_records(database: Database) -> None:
    clock = ManualClock(NOW_S + os.getpid())
    hosts = [Retention(lambda: database, f"{environment()}-turn-{id(clock)}", exist([]), clock) for _ in range(4)]
    assert sum(await asyncio.gather(*[host.has_turn() for host in hosts])) == 1
    clock.advance(300)
    assert not await hosts[0].has_turn()
    clock.advance(400)
    assert await hosts[1].has_turn()


# ---------------------------------------------------------------------------------------------------------- end to end


async def test_the_metrics_tell_how_many_records_wait_and_are_lost() -> None:
    app = emq.App("memory:", options=emq.Settings())
    log = AttemptLog(lambda: app.database, "online", app.host_name, most=3)
    app.handler("*")(_ignore)
    async with app, app.running():
        app.records.append(log)
        for i in range(5):
            log.attempted(attempt(f"m{i}"))
        page = Scraped("".join(exposition.pieces(host_families.of_process(app))))
        assert page.value("emq_records_waiting", kind="records of attempts") == 3
        assert page.value("emq_records_lost_total", kind="records of attempts") == 2


async def _ignore(m: emq.Message) -> None:
    """Nothing is published to it."""


async def test_the_thread_of_the_database_learns_the_host_while_groups_wait_to_be_acquired() -> None:
    async with emq.App("memory:") as app:
        await app.create_topic("orders", 10)
        app.handlers.bind("orders", asyncio.sleep)
        async with app.running() as host:
            await until(lambda: bool(host.ownership.consumed))
            host.ownership.consumed.clear()  # as before the first of them is acquired
            host.consumption.look()
            assert await asyncio.to_thread(_Surroundings(app).host) == host.name

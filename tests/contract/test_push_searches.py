"""Searches by key and in the audit log, on SQLite and PostgreSQL: what they find, and which index serves them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from emq.database import Database
from emq_push.records import audit_log, schema, tables
from emq_push.records.audit_log import AuditFilter, AuditLog
from emq_push.records.deliveries import Deliveries, Place, Selection
from support import push_rows
from support.query_plans import plan, statements

MANY = 50_000
ROWS, LOG = Deliveries("online"), AuditLog("online")


@pytest.fixture
async def database(db: Database) -> Database:
    await schema.ensure(db)
    return db


async def check_cost(database: Database, read: Callable[[sa.Connection], Any], most: int) -> Any:
    """Return what a read returns; it may scan no table, and look at no more rows than `most`."""
    with statements(database) as seen:
        found = await database.run(read, read_only=True)
    for text, parameters in [each for each in seen if each[0].startswith("SELECT")]:
        told = await plan(database, text, parameters)
        if database.dialect == "sqlite":
            whole = [line for line in told.splitlines() if line.startswith("SCAN emq_") or "(environment=?)" in line]
            assert not whole, f"{text}\n{told}"
            continue
        counts = [line.partition("actual rows=")[2].split(".")[0].split() for line in told.splitlines()]
        looked = [int(count[0]) for count in counts if count]
        looked += [int(line.split(":")[1]) for line in told.splitlines() if "Rows Removed" in line]
        assert max(looked, default=0) <= most, f"{text}\n{told}"
    return found


async def test_the_deliveries_of_a_key_come_page_by_page_the_latest_message_first(database: Database) -> None:
    await database.run(lambda c: push_rows.fill(c, "t1", 300))
    await database.run(lambda c: push_rows.fill(c, "t2", 30))
    more = {"state": "dead", "attempts": 1, "status": 500, "reason": "", "next_us": 0, "settled_us": 1}
    new = {"environment": "online", "tenant": "t1", "message": "m0000007", "created_us": push_rows.START_US}
    row = {**new, "topic": "t1.ep_9", **more}
    await database.run(lambda c: c.execute(sa.insert(tables.deliveries).values(row)))
    found: list[Any] = []
    while True:
        after = found[-1].place if found else None
        read = functools.partial(ROWS.of_key, tenant="t1", key="key-0", selection=Selection(), after=after, limit=4)
        page = await database.run(read)
        found += page
        if not page:
            break
    wanted = [(f"m{i:07d}", f"ep_{i % 4}") for i in range(0, 300, 7)]
    wanted.insert(2, ("m0000007", "ep_9"))
    assert [(each.message, each.endpoint) for each in found] == wanted[::-1]
    some = Selection(since_us=push_rows.START_US + 1_000_000, until_us=push_rows.START_US + 3_000_000)
    some_read = functools.partial(ROWS.of_key, tenant="t1", key="key-0", selection=some)
    assert [each.message for each in await database.run(some_read)] == ["m0000028", "m0000021", "m0000014"]


async def test_a_page_of_a_key_with_many_messages_is_read_along_an_index(database: Database) -> None:
    await database.run(lambda c: push_rows.fill(c, "t1", MANY), deadline_s=120)
    if database.dialect == "postgresql":
        await database.run(lambda c: c.exec_driver_sql("ANALYZE"))
    middle = Place(push_rows.START_US + MANY // 20 * 1_000_000, "t1.ep_1", f"m{MANY // 2:07d}")
    for after in (None, middle):
        read = functools.partial(ROWS.of_key, tenant="t1", key="key-3", selection=Selection(), after=after, limit=50)
        assert len(await check_cost(database, read, 250)) == 50


async def fill_log(database: Database, n: int) -> None:
    """Write changes by a key that made all but every hundredth, in turn with three others."""
    rows = [
        {
            "environment": "online",
            "created_us": push_rows.START_US + i,
            "id": f"aud_{i:07d}",
            "tenant": "t1",
            "actor": "key_busy ann" if i % 100 else f"key_rare{i // 100 % 3}",
            "action": "endpoint.changed" if i % 100 else ("key.created", "key.deleted")[i // 100 % 2],
            "target": f"ep_{i % 1000}",
            "changes": "{}",
        }
        for i in range(n)
    ]

    def write(connection: sa.Connection) -> None:
        for start in range(0, n, 5_000):
            connection.execute(sa.insert(tables.audit_log), rows[start : start + 5_000])
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("ANALYZE")

    await database.run(write, deadline_s=120)


FILTERS = {
    "a rare actor": AuditFilter(actor="key_rare1"),
    "rare actors": AuditFilter(actor="key_rare"),
    "nobody": AuditFilter(actor="key_x"),
    "a busy actor": AuditFilter(actor="key_busy"),
    "rare actions": AuditFilter(action="key."),
    "a target": AuditFilter(target="ep_100"),
    "a target of a tenant": AuditFilter(tenant="t1", target="ep_100"),
    "a target by its actor": AuditFilter(target="ep_100", actor="key_rare"),
}


async def test_a_page_of_a_filtered_audit_log_is_read_along_an_index(database: Database) -> None:
    await fill_log(database, MANY)
    for name, wanted in FILTERS.items():
        read = functools.partial(LOG.page, limit=10, cursor="", wanted=wanted)
        page = await check_cost(database, read, 60)
        assert len(page.rows) == (0 if name == "nobody" else 10), name


@pytest.mark.parametrize("most", [1, 50])
async def test_the_pages_of_a_filtered_audit_log_together_are_the_whole_list(
    database: Database, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(audit_log, "MOST_VALUES", most)
    await fill_log(database, 2_000)
    everything = (await database.run(functools.partial(LOG.page, limit=500, cursor=""))).rows
    page, found = await database.run(functools.partial(LOG.page, limit=500, cursor="")), []
    found = [*page.rows]
    while page.next:
        page = await database.run(functools.partial(LOG.page, limit=500, cursor=page.next))
        found += page.rows
    assert len(found) == 2_000
    assert everything == found[:500]
    for wanted in FILTERS.values():
        rows, cursor = [], ""
        while True:
            page = await database.run(functools.partial(LOG.page, limit=7, cursor=cursor, wanted=wanted))
            rows += page.rows
            cursor = page.next
            if not cursor or len(rows) > 100:
                break
        right = [
            each
            for each in found
            if each.actor.startswith(wanted.actor)
            and each.action.startswith(wanted.action)
            and wanted.target in ("", each.target)
        ]
        assert rows == right[: len(rows)]
        assert cursor or len(rows) == len(right)

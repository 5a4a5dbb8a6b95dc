"""The rows of deliveries, on SQLite and PostgreSQL: pages, counts, moves, and what they cost."""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa

from emq.database import Database
from emq_push.records import deliveries, replays, schema, tables
from emq_push.records.attempts import Attempts
from emq_push.records.deliveries import Deliveries, Delivery, Selection
from emq_push.records.replays import Body, Replay, ReplayFilter, Replays
from support import push_rows
from support.query_plans import plan, statements

MANY = 100_000
ROWS = Deliveries("online")


@pytest.fixture
async def database(db: Database) -> Database:
    await schema.ensure(db)
    return db


async def read_all(database: Database, selection: Selection, limit: int, newest_first: bool = True) -> list[Delivery]:
    found: list[Delivery] = []
    while True:
        after = found[-1].place if found else None
        page = await database.run(
            lambda c, after=after: ROWS.read(c, "t1", selection, after=after, limit=limit, newest_first=newest_first)  # type: ignore[misc]
        )
        if not page:
            return found
        found += page


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize(
    "selection",
    [
        Selection(),
        Selection(endpoint="ep_1"),
        Selection(states=("dead",)),
        Selection(states=("dead", "pending")),
        Selection(endpoint="ep_2", states=("delivered",)),
        Selection(since_us=push_rows.START_US + 3_000_000, until_us=push_rows.START_US + 20_000_000),
    ],
)
async def test_pages_together_are_the_whole_list_in_order(
    database: Database, selection: Selection, newest_first: bool
) -> None:
    await database.run(lambda c: push_rows.fill(c, "t1", 300))
    await database.run(lambda c: push_rows.fill(c, "t2", 300))
    found = await read_all(database, selection, 7, newest_first)

    def fits(d: Delivery) -> bool:
        return (
            (not selection.endpoint or d.endpoint == selection.endpoint)
            and (not selection.states or d.state in selection.states)
            and selection.since_us <= d.created_us < selection.until_us
        )

    everything = await read_all(database, Selection(), 500)
    assert len(everything) == 300
    wanted = sorted((d for d in everything if fits(d)), key=lambda d: d.place, reverse=newest_first)
    assert found == wanted
    assert found
    assert {d.tenant for d in found} == {"t1"}
    assert all(d.event_type in ("rare.one", "order.paid") for d in found)


async def test_another_tenant_s_delivery_is_not_there(database: Database) -> None:
    await database.run(lambda c: push_rows.fill(c, "t1", 10))
    assert await database.run(lambda c: ROWS.get(c, "t1", "ep_1", "m0000001")) is not None
    assert await database.run(lambda c: ROWS.get(c, "t2", "ep_1", "m0000001")) is None
    assert await database.run(lambda c: ROWS.read(c, "t2", Selection(endpoint="ep_1"))) == []
    assert await database.run(lambda c: ROWS.read(c, "", Selection(endpoint="t1.ep_1"))) == []


async def test_a_count_is_exact_up_to_its_bound(database: Database) -> None:
    await database.run(lambda c: push_rows.fill(c, "t1", 1000))
    dead = Selection(states=("dead",))
    assert await database.run(lambda c: ROWS.count(c, "t1", dead)) == (200, True)
    assert await database.run(lambda c: ROWS.count(c, "t1", dead, most=150)) == (150, False)
    both = Selection(states=("dead", "delivered"))
    assert await database.run(lambda c: ROWS.count(c, "t1", both, ["rare.*"])) == (10, True)
    assert await database.run(lambda c: ROWS.count(c, "t1", both, ["rare.one", "order.paid"])) == (800, True)
    assert await database.run(lambda c: ROWS.count(c, "t1", both, ["RARE.*"])) == (0, True)


async def test_a_delivery_that_has_changed_is_not_moved(database: Database) -> None:
    await database.run(lambda c: push_rows.fill(c, "t1", 5))
    dead = await database.run(lambda c: ROWS.get(c, "t1", "ep_0", "m0000004"))
    assert dead is not None
    stale = msgspec.structs.replace(dead, settled_us=dead.settled_us - 1)  # it has died once more since
    assert not await database.run(lambda c: ROWS.wait_again(c, [stale]))
    assert await database.run(lambda c: ROWS.wait_again(c, [dead])) == [dead]
    assert not await database.run(lambda c: ROWS.wait_again(c, [dead]))
    again = await database.run(lambda c: ROWS.get(c, "t1", "ep_0", "m0000004"))
    assert again is not None
    assert (again.state, again.attempts, again.settled_us) == ("pending", 0, 0)
    assert not await database.run(lambda c: ROWS.end_as_seen(c, dead, deliveries.CANCELLED, "", 5))
    assert await database.run(lambda c: ROWS.end_as_seen(c, again, deliveries.CANCELLED, "", 5))
    await database.run(lambda c: ROWS.end(c, dead.topic, deliveries.DEAD, "", 6, [dead.message]))
    ended = await database.run(lambda c: ROWS.get(c, "t1", "ep_0", "m0000004"))
    assert ended is not None
    assert (ended.state, ended.settled_us) == ("cancelled", 5)


async def test_the_oldest_pending_delivery_of_each_topic_and_the_topics(database: Database) -> None:
    await database.run(lambda c: push_rows.fill(c, "t1", 100, endpoints=5))
    topics = await database.run(lambda c: ROWS.topics_after(c, "", 10))
    assert topics == [f"t1.ep_{i}" for i in range(5)]
    assert await database.run(lambda c: ROWS.topics_after(c, "t1.ep_2", 1)) == ["t1.ep_3"]
    # Endpoints and states both take turns of five, so that one endpoint has all that is pending.
    assert await database.run(lambda c: ROWS.oldest_pending(c, topics)) == {"t1.ep_3": push_rows.START_US}


async def test_attempts_come_newest_first_in_pages(database: Database) -> None:
    def fill(c: sa.Connection) -> None:
        row = {"environment": "online", "took_us": 5, "status": 500, "outcome": "retry", "reason": "HTTP 500"}
        row |= {"answer": "", "host": "h"}
        rows = [
            {**row, "topic": t, "message": f"m{i % 3}", "started_us": i, "number": i // 3 + 1}
            for i in range(9)
            for t in ("t1.ep_1", "t1.ep_2")
        ]
        c.execute(sa.insert(tables.attempts), rows)

    await database.run(fill)
    mine = Attempts("online")
    found = await database.run(lambda c: mine.of_delivery(c, "t1.ep_1", "m1", 2))
    assert [a.started_us for a in found.rows] == [7, 4]
    found = await database.run(lambda c: mine.of_delivery(c, "t1.ep_1", "m1", 2, found.next))
    assert ([a.started_us for a in found.rows], found.next) == ([1], "")
    page = await database.run(lambda c: mine.of_topic(c, "t1.ep_1", 5))
    rest = await database.run(lambda c: mine.of_topic(c, "t1.ep_1", 5, page.next))
    assert [a.started_us for a in (*page.rows, *rest.rows)] == list(range(8, -1, -1))


async def test_of_two_writers_of_a_replay_the_later_one_changes_nothing(database: Database) -> None:
    await database.run(lambda c: push_rows.fill(c, "t1", 50))
    made, mine = Replay("rpl_1", "t1", replays.RUNNING, Body(ReplayFilter(), 10.0), 1, 1), Replays("online")
    await database.run(lambda c: mine.add(c, made))
    dead = await database.run(lambda c: ROWS.read(c, "t1", Selection(states=("dead",)), limit=3))
    first = await database.run(lambda c: mine.save(c, made, made, 5, dead))
    assert first is not None
    assert len(first.body.units) == 3
    others = await database.run(lambda c: ROWS.read(c, "t1", Selection(states=("dead",)), limit=3))
    assert await database.run(lambda c: mine.save(c, made, made, 6, others)) is None
    assert len(await database.run(lambda c: ROWS.read(c, "t1", Selection(states=("dead",))))) == 7
    # What changed since it was read is left out, and counted.
    second = await database.run(lambda c: mine.save(c, first, first, 6, dead))
    assert second is not None
    assert (second.body.units, second.body.left_out) == ((), 3)
    assert await database.run(lambda c: mine.get(c, "t2", "rpl_1")) is None


# ----------------------------------------------------------------------------------------------------------------- cost


async def test_a_page_of_a_hundred_thousand_deliveries_is_read_along_an_index(database: Database) -> None:
    await database.run(lambda c: push_rows.fill(c, "t1", MANY), deadline_s=120)
    await database.run(lambda c: push_rows.fill(c, "t2", 1000))
    if database.dialect == "postgresql":
        await database.run(lambda c: c.exec_driver_sql("ANALYZE"))
    middle = deliveries.Place(push_rows.START_US + MANY // 20 * 1_000_000, "t1.ep_1", "m0050000")
    selections = [
        Selection(),
        Selection(states=("dead",)),
        Selection(states=("dead", "delivered", "cancelled")),
        Selection(endpoint="ep_3"),
        Selection(endpoint="ep_3", states=("pending",)),
    ]
    with statements(database) as seen:
        for selection in selections:
            for newest_first in (True, False):
                page = await database.run(
                    lambda c, s=selection, n=newest_first: ROWS.read(  # type: ignore[misc]
                        c, "t1", s, after=middle, limit=50, newest_first=n
                    ),
                    read_only=True,
                )
                assert len(page) == 50
        await database.run(lambda c: ROWS.oldest_pending(c, ["t1.ep_3"]), read_only=True)
        await database.run(lambda c: ROWS.topics_after(c, "t1.ep_2", 1), read_only=True)
        await database.run(lambda c: Attempts("online").of_topic(c, "t1.ep_1", 100), read_only=True)
        await database.run(lambda c: Replays("online").page(c, "t1", 100), read_only=True)
    looked = [(text, parameters) for text, parameters in seen if text.startswith("SELECT")]
    assert len(looked) >= 24
    for text, parameters in looked:
        found = await plan(database, text, parameters)
        if database.dialect == "sqlite":
            scans = [line for line in found.splitlines() if line.startswith("SCAN emq_")]
            assert not scans, f"{text}\n{found}"
        else:
            assert "Seq Scan" not in found or "emq_push_deliveries" not in text, f"{text}\n{found}"
            actual = [
                int(line.split("actual rows=")[1].split(".")[0].split()[0])
                for line in found.splitlines()
                if "actual rows=" in line
            ]
            removed = [int(line.split(":")[1]) for line in found.splitlines() if "Rows Removed" in line]
            assert max(actual + removed, default=0) <= 250, f"{text}\n{found}"

"""The outbox: messages of committed transactions are published in order, at least once, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import pathlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from support.pages import module_of, snippets

import emq
from emq import errors, message
from emq.outbox import Outbox, turns
from emq.outbox.relay import Relay

NAMES = (f"emq_outbox_{number}" for number in itertools.count())


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    found: str = request.getfixturevalue("postgres_url")
    return found.replace("postgresql:", "postgresql+psycopg:")


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(sa.MetaData(), next(NAMES))  # the tests of a run share one PostgreSQL database


@pytest.fixture
def engine(url: str, outbox: Outbox) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url)
    outbox.table.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
async def app() -> AsyncIterator[emq.App]:
    async with emq.App("memory:") as app:
        await app.create_topic("orders", qps=100, group_qps=100)
        yield app


def rows(engine: sa.Engine, outbox: Outbox) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(sa.select(outbox.table).order_by(outbox.table.c.id)))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


async def stored(app: emq.App, topic: str = "orders") -> list[str]:
    """Return the payloads in the queues of a topic, in the order in which the store has them."""
    found = await app.catalog.get(topic)
    log, payloads = app.store.log, []
    for queue in found.all_queues():
        [bounds] = await log.bounds([queue])
        for offset in range(bounds.head, bounds.tail):
            if (data := await log.get(queue, offset)) is not None:
                payloads.append(message.read(data).payload.decode())
    return payloads


async def test_messages_of_committed_transactions_are_published(
    app: emq.App, engine: sa.Engine, outbox: Outbox
) -> None:
    with orm.Session(engine) as session:
        ids = [outbox.publish(session, "orders", f"{i}", key="acme") for i in range(5)]
        session.commit()
        outbox.publish(session, "orders", "rolled back")
        session.rollback()
        with session.begin_nested() as savepoint:
            outbox.publish(session, "orders", "of a savepoint")
            savepoint.rollback()
        session.commit()
    with engine.begin() as connection:
        outbox.publish(connection, "orders", b"5", key="acme", message_id="mine")
    with contextlib.suppress(ZeroDivisionError), engine.begin() as connection:
        outbox.publish(connection, "orders", "rolled back, too")
        raise ZeroDivisionError
    assert [row.message_id for row in rows(engine, outbox)] == [*ids, "mine"]
    async with outbox.relay(app, engine) as relay:
        await until(lambda: relay.published == 6)
    assert rows(engine, outbox) == []
    assert await stored(app) == ["0", "1", "2", "3", "4", "5"]


async def test_a_commit_in_the_same_process_wakes_the_relay(app: emq.App, engine: sa.Engine, outbox: Outbox) -> None:
    async with outbox.relay(app, engine, poll_s=3600) as relay:
        await asyncio.sleep(0.05)
        scoped = orm.scoped_session(orm.sessionmaker(engine))

        def commit() -> None:  # in a thread, as a web framework has it
            for _ in range(2):
                outbox.publish(scoped, "orders", "17")
            scoped.commit()
            scoped.remove()

        await asyncio.to_thread(commit)
        await until(lambda: relay.published == 2)


async def test_an_async_session_and_an_async_engine(app: emq.App, postgres_url: str, outbox: Outbox) -> None:
    engine = create_async_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        async with engine.begin() as connection:
            await connection.run_sync(outbox.table.metadata.create_all)
            await connection.run_sync(outbox.publish, "orders", "0", key="acme")
            with pytest.raises(errors.InvalidSettings, match="run_sync"):
                outbox.publish(connection, "orders", "1")  # type: ignore[arg-type]
        async with outbox.relay(app, engine, poll_s=3600) as relay:
            await until(lambda: relay.published == 1)
            async with AsyncSession(engine) as session, session.begin():
                outbox.publish(session, "orders", "1", key="acme")
            await until(lambda: relay.published == 2)
        assert await stored(app) == ["0", "1"]
    finally:
        await engine.dispose()


async def test_a_poison_row_is_marked_and_stops_nobody(app: emq.App, engine: sa.Engine, outbox: Outbox) -> None:
    await app.create_topic("small", qps=1, max_payload=3)
    with orm.Session(engine) as session, session.begin():
        outbox.publish(session, "orders", "0")
        outbox.publish(session, "nowhere", "lost")
        outbox.publish(session, "small", "too large")
        outbox.publish(session, "orders", "bad", priority="no such priority")
        outbox.publish(session, "orders", "1")
    with engine.begin() as connection:  # somebody else's row
        values = {"message_id": "x", "topic": "orders", "payload": b"2", "options": '{"color": 1}'}
        connection.execute(outbox.table.insert(), values)
    async with outbox.relay(app, engine) as relay:
        await until(lambda: relay.published == 2)
        await until(lambda: all(row.error for row in rows(engine, outbox)))
        reasons = [row.error for row in rows(engine, outbox)]
        for reason, text in zip(reasons, ["nowhere", "takes 3", "no such priority", "color"], strict=True):
            assert text in reason
        await app.create_topic("nowhere", qps=1)
        with engine.begin() as connection:
            connection.execute(outbox.table.update().values(error=None))
        await until(lambda: relay.published == 3)
    assert await stored(app, "nowhere") == ["lost"]


async def test_a_full_topic_keeps_its_order_and_does_not_hold_up_others(
    app: emq.App, engine: sa.Engine, outbox: Outbox
) -> None:
    await app.create_topic("full", qps=10, group_qps=10, max_length=2)
    with orm.Session(engine) as session, session.begin():
        for i in range(10):
            outbox.publish(session, "full", f"{i}")
        outbox.publish(session, "orders", "free")
    send = app.producer.send

    async def send_and_make_room(messages: Any) -> Any:
        outcomes = await send(messages)
        if any(isinstance(outcome, errors.TopicFull) for outcome in outcomes):
            # Later rows of this pass would find room now, and overtake the one that did not.
            await app.update_topic("full", max_length=100)
            await app.producer.refresh()
        return outcomes

    app.producer.send = send_and_make_room  # type: ignore[method-assign]
    async with outbox.relay(app, engine, page=3, poll_s=0.01) as relay:
        await until(lambda: relay.published == 11)
    assert await stored(app, "orders") == ["free"]
    assert await stored(app, "full") == [f"{i}" for i in range(10)]


async def test_a_store_that_is_away_keeps_the_rows_and_is_told_once(
    app: emq.App, engine: sa.Engine, outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    asked = 0
    put = app.store.log.put

    async def away(*arguments: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked < 5:
            raise errors.StoreUnavailable("no server there")
        return await put(*arguments, **options)

    app.store.log.put = away  # type: ignore[method-assign]
    caplog.set_level("INFO")
    with orm.Session(engine) as session, session.begin():
        outbox.publish(session, "orders", "0")
    async with outbox.relay(app, engine, poll_s=0.01) as relay:
        await until(lambda: relay.published == 1)
        await until(lambda: "published again" in caplog.text)
    assert [record.message for record in caplog.records if "no server there" in record.message] == [
        f"outbox {outbox.table}: its rows wait, and are tried every 0.01 s: topic 'orders': no server there"
    ]


async def test_a_relay_that_dies_before_it_deletes_publishes_again_under_the_same_id(
    app: emq.App, engine: sa.Engine, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic with dedupe_s has the message once; the other one, to show that there was a repeat, twice."""
    await app.create_topic("once", qps=10, dedupe_s=60)
    with orm.Session(engine) as session, session.begin():
        outbox.publish(session, "once", "17", message_id="mine")
        outbox.publish(session, "orders", "17")
    settle, died = Relay._settle, []

    def die(*arguments: Any) -> None:
        if not died:
            died.append(True)
            raise OSError("killed")
        settle(*arguments)

    monkeypatch.setattr(Relay, "_settle", die)
    async with outbox.relay(app, engine, poll_s=0.01):
        await until(lambda: not rows(engine, outbox))
    assert await stored(app, "once") == ["17"]
    assert await stored(app, "orders") == ["17", "17"]


async def test_several_relays_publish_each_row_once_and_in_order(url: str, engine: sa.Engine, outbox: Outbox) -> None:
    """Relays with outboxes, engines and stores' connections of their own, as processes have them."""
    count, metadata = 300, outbox.table.metadata
    with orm.Session(engine) as session, session.begin():
        for i in range(count):
            outbox.publish(session, "orders", f"{i}", key="acme")
    others = [Outbox(sa.MetaData(), outbox.table.name) for _ in range(3)]
    engines = [sa.create_engine(url) for _ in others]
    async with emq.App("memory:") as app, contextlib.AsyncExitStack() as stack:
        await app.create_topic("orders", qps=100, group_qps=100)
        relays = [
            await stack.enter_async_context(other.relay(app, own, page=7, poll_s=0.001))
            for other, own in zip(others, engines, strict=True)
        ]
        await until(lambda: sum(relay.published for relay in relays) >= count)
        await stack.aclose()
        assert await stored(app) == [f"{i}" for i in range(count)]
    assert metadata.tables
    for own in engines:
        own.dispose()


def test_a_turn_goes_with_its_process(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "shop.db")
    begun, context = multiprocessing.get_context("spawn").Event(), multiprocessing.get_context("spawn")
    holder = context.Process(target=hold_turn, args=(file, begun))
    holder.start()
    assert begun.wait(30)
    with turns.by_file(file, "emq_outbox") as has_turn:
        assert not has_turn
    holder.kill()
    holder.join()
    with turns.by_file(file, "emq_outbox") as has_turn:
        assert has_turn


def hold_turn(file: str, begun: Any) -> None:
    with turns.by_file(file, "emq_outbox") as has_turn:
        if has_turn:
            begun.set()
        time.sleep(60)


async def test_a_stop_ends_the_page_under_way(app: emq.App, engine: sa.Engine, outbox: Outbox) -> None:
    put, began = app.store.log.put, asyncio.Event()

    async def slow(*arguments: Any, **options: Any) -> Any:
        began.set()
        await asyncio.sleep(0.1)
        return await put(*arguments, **options)

    app.store.log.put = slow  # type: ignore[method-assign]
    with orm.Session(engine) as session, session.begin():
        for i in range(3):
            outbox.publish(session, "orders", f"{i}", key="acme")
    async with outbox.relay(app, engine):
        await began.wait()
    assert rows(engine, outbox) == []
    assert await stored(app) == ["0", "1", "2"]


async def test_large_rows_are_read_few_at_a_time(
    app: emq.App, engine: sa.Engine, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq.outbox.relay.PAGE_BYTES", 1000)
    sent: list[int] = []
    send = app.producer.send

    async def counted(messages: Any) -> Any:
        sent.append(len(messages))
        return await send(messages)

    app.producer.send = counted  # type: ignore[method-assign]
    with orm.Session(engine) as session, session.begin():
        for _ in range(10):
            outbox.publish(session, "orders", "x" * 400)
    async with outbox.relay(app, engine) as relay:
        await until(lambda: relay.published == 10)
    assert [n for n in sent if n] == [3, 3, 3, 1]


async def test_delays_options_and_merge_keys_arrive(app: emq.App, engine: sa.Engine, outbox: Outbox) -> None:
    await app.create_topic("merged", qps=10, kind="range_merge", merge="key", time_range_ms=60_000)
    with orm.Session(engine) as session, session.begin():
        later = outbox.publish(session, "orders", "later", key="acme", delay_ms=60_000, headers={"a": "b"})
        for payload in ("1", "2"):
            outbox.publish(session, "merged", payload, merge_key=b"\xff")
        typed = outbox.publish(session, "orders", {"id": 7}, delay_ms=90_000)
    async with outbox.relay(app, engine) as relay:
        await until(lambda: relay.published == 4)
    [planned, other] = [p for p in await app.planned() if p.topic == "orders"]
    assert (other.id, other.payload) == (typed, b'{"id":7}')
    assert (planned.id, planned.key) == (later, "acme")
    assert abs(planned.due_ms / 1000 - time.time() - 60) < 20


def test_mistakes_are_told_at_once(outbox: Outbox) -> None:
    session = orm.Session(sa.create_engine("sqlite://"))
    for options, text in [
        ({"payload": 5}, "give bytes, text, a dict"),
        ({"at": 1.0, "delay_ms": 1}, "not both"),
        ({"headers": {"a": 1}}, "header 'a'"),
        ({"message_id": ""}, "1 to 128"),
        ({"key": object()}, "JSON"),
    ]:
        with pytest.raises(errors.InvalidMessage, match=text):
            outbox.publish(session, "orders", **{"payload": b"", **options})  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidSettings, match="give a Session"):
        outbox.publish("session", "orders", b"")  # type: ignore[arg-type]


async def test_the_documented_shop_works(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shop = module_of(snippets("docs/outbox.md")[0])
    shop.Base.metadata.create_all(shop.engine)
    received: list[emq.Message] = []

    @shop.app.handler("orders")
    async def handle(message: emq.Message) -> None:
        received.append(message)

    async with shop.app, shop.app.running():
        await shop.app.create_topic("orders", qps=10)
        order = await asyncio.to_thread(shop.place_order, "acme")
        await until(lambda: bool(received))
    [got] = received
    assert (got.payload.decode(), got.key) == (str(order), "acme")
    shop.engine.dispose()

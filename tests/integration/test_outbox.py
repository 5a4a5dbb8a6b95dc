"""The outbox: messages of committed transactions are published in order, at least once, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import pathlib
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import QueuePool

import emq
from emq.runtime import errors
from emq.storage import message
from emq_outbox import Outbox, turns
from emq_outbox.relay import Relay
from support.pages import module_of, snippets
from support.waiting import until

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


def insert(engine: sa.Engine, outbox: Outbox, *payloads: str, topic: str = "orders", **options: Any) -> None:
    """Publish in one transaction."""
    with orm.Session(engine) as session, session.begin():
        for payload in payloads:
            outbox.publish(session, topic, payload, **options)


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
    insert(engine, outbox, *map(str, range(10)), topic="full")
    insert(engine, outbox, "free")
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
    insert(engine, outbox, "0")
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
    insert(engine, outbox, "17", topic="once", message_id="mine")
    insert(engine, outbox, "17")
    died = asyncio.Event()

    def die(*arguments: Any) -> None:
        loop.call_soon_threadsafe(died.set)
        raise OSError("killed")

    loop = asyncio.get_running_loop()
    with monkeypatch.context() as patched:
        patched.setattr(Relay, "_settle", die)
        async with outbox.relay(app, engine):
            await died.wait()
    async with outbox.relay(app, engine):
        await until(lambda: not rows(engine, outbox))
    assert await stored(app, "once") == ["17"]
    assert await stored(app, "orders") == ["17", "17"]


async def test_a_database_that_fails_before_the_delete_has_no_row_published_twice(
    app: emq.App, engine: sa.Engine, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(engine, outbox, "0", "1", "2", key="acme")
    insert(engine, outbox, "refused", topic="nowhere")
    settle, failed = Relay._settle, []

    def fail(*arguments: Any) -> None:
        if len(failed) < 3:
            failed.append(True)
            if len(failed) == 1:  # what is inserted meanwhile goes its own way
                insert(engine, outbox, "3", key="acme")
            raise sa.exc.OperationalError("DELETE", {}, Exception("database is locked"))
        settle(*arguments)

    monkeypatch.setattr(Relay, "_settle", fail)
    async with outbox.relay(app, engine, poll_s=0.01) as relay:
        await until(lambda: relay.published == 4)
        assert relay._settled == {}
    assert await stored(app) == ["0", "1", "2", "3"]
    [refused] = rows(engine, outbox)
    assert "nowhere" in refused.error


async def test_a_row_that_could_not_be_deleted_is_remembered_until_its_own_page(
    app: emq.App, engine: sa.Engine, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row before it comes back meanwhile, and moves it to the next page."""
    columns, settle, failed = outbox.table.c, Relay._settle, []
    insert(engine, outbox, "0", "1", "2")
    with engine.begin() as connection:
        connection.execute(outbox.table.update().values(error="refused").where(columns.payload == b"0"))

    def fail(*arguments: Any) -> None:
        if not failed:
            failed.append(True)
            raise RuntimeError("the database is confused")
        settle(*arguments)

    monkeypatch.setattr(Relay, "_settle", fail)
    async with outbox.relay(app, engine, poll_s=3600, page=2) as relay:
        await until(lambda: bool(failed))
        with engine.begin() as connection:
            connection.execute(outbox.table.update().values(error=None))
        relay.wake()
        await until(lambda: relay.published == 3)
        await until(lambda: not relay._settled)
    assert sorted(await stored(app)) == ["0", "1", "2"]


class Seal(emq.Middleware):
    """Changes each publish, and lets go of the event loop, the less the later it comes."""

    def __init__(self) -> None:
        self.waits = iter(range(20, 0, -1))
        self.fails: list[str] = []

    async def publish(self, call: emq.PublishCall, call_next: emq.PublishNext) -> list[str]:
        if str(call.payloads[0], "utf-8") in self.fails:  # type: ignore[arg-type]
            raise ZeroDivisionError("no key to seal with")
        for _ in range(next(self.waits, 0)):
            await asyncio.sleep(0)
        call.payloads = [b"sealed " + bytes(call.payloads[0])]  # type: ignore[arg-type]
        return await call_next(call)


async def test_rows_pass_through_the_middleware_of_the_app_in_order(engine: sa.Engine, outbox: Outbox) -> None:
    seal = Seal()
    async with emq.App("memory:", middleware=[seal]) as app:
        await app.create_topic("orders", qps=100, group_qps=100)
        await app.create_topic("others", qps=100, group_qps=100)
        seal.fails = ["1"]
        with orm.Session(engine) as session, session.begin():
            ids = [outbox.publish(session, "orders", f"{i}", key="acme") for i in range(4)]
            outbox.publish(session, "nowhere", "lost")
            outbox.publish(session, "others", "free")
        async with outbox.relay(app, engine, poll_s=0.01) as relay:
            await until(lambda: relay.published == 2)
            # A middleware that fails keeps the rows of the topic, lest one overtakes another.
            assert [row.message_id for row in rows(engine, outbox) if row.error is None] == ids[1:]
            seal.fails = []
            await until(lambda: relay.published == 5)
        assert await stored(app) == [f"sealed {i}" for i in range(4)]
        assert await stored(app, "others") == ["sealed free"]
        [refused] = rows(engine, outbox)
        assert "nowhere" in refused.error


@pytest.mark.parametrize(
    "options",
    ["5", "null", '"x"', "[]", "{", "[" * 100_000, '{"merge_key_base64": 5}', r'{"\u0000": 5}', r'{"\ud800": 5}'],
)
async def test_options_that_nobody_can_read_stop_nobody(
    app: emq.App, engine: sa.Engine, outbox: Outbox, caplog: pytest.LogCaptureFixture, options: str
) -> None:
    with engine.begin() as connection:
        values = {"message_id": "x", "topic": "orders", "payload": b"2", "options": options}
        connection.execute(outbox.table.insert(), values)
        outbox.publish(connection, "orders", "free")
    async with outbox.relay(app, engine) as relay:
        await until(lambda: relay.published == 1)
    assert await stored(app) == ["free"]
    [marked] = rows(engine, outbox)
    assert "options" in marked.error
    assert "options" in caplog.text.encode().decode()  # a log takes no lone surrogates


async def test_several_relays_publish_each_row_once_and_in_order(url: str, engine: sa.Engine, outbox: Outbox) -> None:
    """Relays with outboxes, engines and stores' connections of their own, as processes have them."""
    count, metadata = 300, outbox.table.metadata
    insert(engine, outbox, *map(str, range(count)), key="acme")
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


@pytest.mark.parametrize("patience_s", [None, 0.05], ids=["awaited", "cancelled"])
async def test_a_stop_ends_the_page_under_way(
    app: emq.App, engine: sa.Engine, outbox: Outbox, patience_s: float | None
) -> None:
    put, began = app.store.log.put, asyncio.Event()

    async def slow(*arguments: Any, **options: Any) -> Any:
        began.set()
        await asyncio.sleep(0.2)
        return await put(*arguments, **options)

    app.store.log.put = slow  # type: ignore[method-assign]
    insert(engine, outbox, "0", "1", "2", key="acme")
    relay = outbox.relay(app, engine)
    await relay.__aenter__()
    await began.wait()
    with pytest.raises(TimeoutError) if patience_s else contextlib.nullcontext():
        await asyncio.wait_for(relay.__aexit__(None, None, None), patience_s)
    assert rows(engine, outbox) == []
    assert await stored(app) == ["0", "1", "2"]


async def test_large_rows_are_read_few_at_a_time(
    app: emq.App, engine: sa.Engine, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emq_outbox.relay.PAGE_BYTES", 1000)
    sent: list[int] = []
    send = app.producer.send

    async def counted(messages: Any) -> Any:
        sent.append(len(messages))
        return await send(messages)

    app.producer.send = counted  # type: ignore[method-assign]
    insert(engine, outbox, *["x" * 400] * 10)
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
        ({"key": 5}, "key 5 is of type int"),
        ({"priority": []}, "priority"),
        ({"ttl_s": -1}, "ttl_s"),
        ({"delay_ms": -1}, "delay_ms"),
        ({"at": "tomorrow"}, "at 'tomorrow'"),
        ({"time_range_ms": "1"}, "time_range_ms"),
        ({"merge_key": 5}, "merge_key"),
        ({"payload": "\ud800"}, "UTF-8"),
        ({"topic": "a\0b"}, "NUL"),
        ({"message_id": "a\0b"}, "NUL"),
        ({"topic": 5}, "topic 5"),
    ]:
        with pytest.raises(errors.InvalidMessage, match=text):
            outbox.publish(session, **{"topic": "orders", "payload": b"", **options})  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidSettings, match="give a Session"):
        outbox.publish("session", "orders", b"")  # type: ignore[arg-type]


async def test_a_relay_that_could_not_work_is_refused(app: emq.App, outbox: Outbox, tmp_path: pathlib.Path) -> None:
    in_file = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    for engine, options, text in [
        (in_file, {"page": 0}, "page 0"),
        (in_file, {"page": 1.5}, "page 1.5"),
        (in_file, {"poll_s": 0}, "poll_s 0"),
        (in_file, {"poll_s": "1"}, "poll_s '1'"),
        (sa.create_engine("sqlite://"), {}, "each thread a database of its own"),
    ]:
        with pytest.raises(errors.InvalidSettings, match=text):
            async with outbox.relay(app, engine, **options):  # type: ignore[arg-type]
                pass
    in_file.dispose()


async def test_the_turn_is_a_lock_beside_the_file_that_the_engine_opens(
    app: emq.App, outbox: Outbox, tmp_path: pathlib.Path
) -> None:
    """Its URL may name the file in other ways, or not at all."""
    file = tmp_path / "shop.db"
    for engine in (
        sa.create_engine(f"sqlite:///file:{file}?uri=true"),
        sa.create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(file, check_same_thread=False), poolclass=QueuePool
        ),
    ):
        outbox.table.metadata.create_all(engine)
        insert(engine, outbox, "1")
        async with outbox.relay(app, engine, poll_s=0.01) as relay:
            await until(lambda: relay.published == 1)
        (tmp_path / f"shop.db-{outbox.table.name}-relay").unlink()
        engine.dispose()


def test_a_turn_does_not_stay_with_a_process_that_was_forked_meanwhile(tmp_path: pathlib.Path) -> None:
    file = str(tmp_path / "shop.db")
    with turns.by_file(file, "emq_outbox") as has_turn:
        assert has_turn
        found = [int(fd) for fd in os.listdir("/proc/self/fd") if is_file(fd, f"{file}-emq_outbox-relay")]
        copies = [os.dup(descriptor) for descriptor in found]
    try:  # a fork copies the open file in the same way
        assert len(copies) == 1
        with turns.by_file(file, "emq_outbox") as has_turn:
            assert has_turn
    finally:
        for copy in copies:
            os.close(copy)


def is_file(descriptor: str, path: str) -> bool:
    try:
        return os.path.samefile(f"/proc/self/fd/{descriptor}", path)
    except OSError:  # the descriptor of the listing itself
        return False


async def test_the_documented_shop_works(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shop = module_of(snippets("docs/outbox.md")[0])
    shop.Base.metadata.create_all(shop.engine)
    received: list[emq.Message] = []

    @shop.app.handler("orders")
    async def handle(message: emq.Message) -> None:
        received.append(message)

    async with shop.app, shop.app.running():
        order = await asyncio.to_thread(shop.place_order, "acme")
        await until(lambda: bool(received))
    [got] = received
    assert (got.payload.decode(), got.key) == (str(order), "acme")
    shop.engine.dispose()

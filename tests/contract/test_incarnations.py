"""Incarnations of queues, on every adapter: a queue keeps its own for life, and one that is made again has another."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
import sqlalchemy as sa

from emq.storage.answers import served
from emq.storage.log_store import LogStore, Put, Read, Trim
from emq.storage.store import Store
from emq_stores.memory import forget
from emq_stores.redis.keys import Shard
from emq_testing.contract.target import Can, Target, put_one, read_one


async def incarnations(log: LogStore, *queues: str) -> list[int]:
    return [bounds.incarnation for bounds in served(await log.bounds(queues))]


async def test_an_unused_queue_has_none_and_each_that_is_made_has_its_own(store: Store, target: Target) -> None:
    first, second, unused = (target.queue(group=group) for group in range(3))
    assert await incarnations(store.log, first, second, unused) == [0, 0, 0]
    for queue in (first, second):
        await put_one(store.log, queue, f"the first of {queue}".encode())
    found = await incarnations(store.log, first, second, unused)
    assert found[0] > 0 < found[1] != found[0]
    assert found[2] == 0


async def test_a_queue_keeps_its_incarnation_through_all_that_happens_to_it(store: Store, target: Target) -> None:
    queue = target.queue()
    offsets = await put_one(store.log, queue, b"a", b"b", b"c")
    [made] = await incarnations(store.log, queue)
    await put_one(store.log, queue, b"d")
    await read_one(store.log, queue, offsets[0])
    for upto, seal in ((offsets[1], None), (offsets[2] + 100, True), (0, False)):
        await store.log.trim([Trim(queue, upto, 1, seal)])
        assert await incarnations(store.log, queue) == [made]
    await put_one(store.log, queue, b"e")
    assert await incarnations(store.log, queue) == [made]


async def test_dropping_the_oldest_keeps_it_and_so_does_a_put_of_nothing(store: Store, target: Target) -> None:
    if Can.MAX_LENGTH not in target.can:
        pytest.skip(f"{target.name} does not promise: {Can.MAX_LENGTH.value}")
    queue = target.queue()
    await store.log.put([Put(queue, [])])
    await put_one(store.log, queue, b"a", b"b")
    [made] = await incarnations(store.log, queue)
    await store.log.put([Put(queue, [b"c"], max_length=2, drop_oldest=True, siblings=[queue])])
    assert (await incarnations(store.log, queue), made > 0) == ([made], True)


async def test_all_instances_see_the_same(store: Store, other: Store, target: Target) -> None:
    queue = target.queue()
    await put_one(store.log, queue, b"a")
    assert await incarnations(other.log, queue) == await incarnations(store.log, queue)


async def test_a_queue_that_is_lost_and_made_again_has_another_one(
    opened: Target, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its offsets start again, and the bodies are the same: only the incarnation tells the two apart."""
    queue = opened.queue()

    async def made() -> int:
        store = await opened.open()
        await put_one(store.log, queue, b"a", b"b")
        [found] = await incarnations(store.log, queue)
        await opened.close()
        return found

    before = await made()
    _lose(opened, queue, tmp_path, request)
    store = await opened.open()
    [batch] = await store.log.read([Read(queue, store.log.first_offset, 10, None)])
    assert not getattr(batch, "bodies", ())
    assert await made() not in (0, before)


def _lose(target: Target, queue: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Remove the queue from the store, as a flush of the whole store does."""
    if target.name == "memory":
        forget(target.topic)
    elif target.name == "sqlite":
        for file in tmp_path.glob("store.db*"):
            file.unlink()
    elif target.name == "postgresql":
        url, pool = request.getfixturevalue("postgres_url"), sa.NullPool
        with sa.create_engine(url, poolclass=pool).begin() as connection:
            of = "SELECT id FROM store_queues WHERE name = :name"
            connection.execute(sa.text(f"DELETE FROM store_messages WHERE queue_id IN ({of})"), {"name": queue})
            connection.execute(sa.text("DELETE FROM store_queues WHERE name = :name"), {"name": queue})
    elif target.name == "redis":
        with redis.Redis.from_url(request.getfixturevalue("redis_url")) as client:
            shard = Shard("online", 0)
            client.delete(shard.log(queue))
            client.hdel(shard.head, queue)
    else:
        pytest.skip(f"no test removes a queue from {target.name}")

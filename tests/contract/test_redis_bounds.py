"""Redis serves one call at a time. So a large claim is sent as several, and a read loads little that it leaves out."""

from __future__ import annotations

from typing import Any, cast

import pytest
import redis.asyncio

from emq.storage import marks
from emq.storage.log_store import Batch, Read
from emq.storage.slot_store import Keep, SlotAdd, SlotClaim, SlotClaimed, SlotKind
from emq.storage.store import Store
from emq_stores.redis import slot_store as slots
from emq_stores.redis.slot_store import RedisSorted
from emq_testing.contract.target import Target, put_one

NOW = 1_700_000_000_000


@pytest.mark.parametrize("target", ["redis"], indirect=True)
async def test_a_call_brings_no_more_than_its_bound_and_the_next_ones_bring_the_rest(
    store: Store, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = target.sorted_slot(SlotKind.PRIORITY)
    members = [b"%d" % i for i in range(25)]
    await store.sorted.add([SlotAdd(slot, member, 100.0, Keep.LAST) for member in members])
    server = cast(RedisSorted, store.sorted)._server
    run, brought = server.run, []

    async def counted(name: str, *args: Any, **kwargs: Any) -> Any:
        replies = await run(name, *args, **kwargs)
        brought.append((name, [len(page) // 2 for _, page, *_ in replies]))
        return replies

    monkeypatch.setattr(slots, "MEMBERS", 10)
    monkeypatch.setattr(server, "run", counted)
    [claimed] = await store.sorted.claim([SlotClaim(slot, len(members), 1, NOW)], NOW)
    assert isinstance(claimed, SlotClaimed)
    assert sorted(entry.member for entry in claimed.entries) == sorted(members)
    assert brought == [("slot_claim", [10]), ("slot_claim", [10]), ("slot_claim", [5])]


@pytest.mark.parametrize("target", ["redis"], indirect=True)
@pytest.mark.parametrize("sizes", [[100], [100_000], [1_000_000], [100, 1_000_000], [100, 200_000, 900_000]])
async def test_a_read_of_large_messages_loads_few_that_it_has_no_room_for(
    store: Store, target: Target, redis_url: str, sizes: list[int]
) -> None:
    """Else 500 messages of 1 MB would hold up the server, and with it every other queue, for a second a read."""
    queue, count, bound = target.queue(), 64, 1 << 20
    bodies = [b"%08d" % i + bytes(sizes[i % len(sizes)]) for i in range(count)]
    for body in bodies:
        await put_one(store.log, queue, body)
    loaded, seen, offset = 0, list[bytes](), 1
    async with redis.asyncio.Redis.from_url(redis_url) as client, client.monitor() as monitor:
        while len(seen) < count:
            mark = marks.of(offset - 1, seen[-1]) if seen else None
            [batch] = await store.log.read([Read(queue, offset, 500, 1, mark)], bound)
            assert isinstance(batch, Batch)
            assert batch.bodies, "at least one message, whatever its size"
            seen += batch.bodies
            offset = batch.next
        await client.echo("the end")
        async for command in monitor.listen():
            words = command["command"].split()
            if words[0] == "ECHO":
                break
            if words[0] == "LRANGE":
                first, last = int(words[-2]), min(int(words[-1]), count - 1)
                loaded += sum(map(len, bodies[first : last + 1]))
    assert seen == bodies
    assert loaded <= 3 * sum(map(len, bodies)) + 16 * max(sizes), "16 at first, where no size is known"

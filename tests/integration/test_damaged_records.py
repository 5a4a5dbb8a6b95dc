"""Records in the store that cannot be decoded: dead letters with their bytes, while their neighbours are delivered."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import redis.asyncio

from emq.app import App
from emq.observe import dead_letters
from emq.storage import message
from emq.storage.lane_store import LaneAdd
from emq.storage.log_store import Put
from emq.storage.message import Message
from support.rig import Rig, Seen, running
from support.virtual import virtual
from support.waiting import until


@virtual
async def test_damaged_records_of_queues_and_lanes_are_dead_letters_and_the_rest_is_delivered(r: Rig) -> None:
    topic = await r.topic("t", 50, group_qps=50)
    whole = [message.encode(f"id-{n}", b"%d" % n, None, 1, None) for n in range(4)]
    cut, strange = whole[1][:-2], b'{"a stranger\'s": 1}'
    await r.store.log.put([Put(topic.queue(0, 1), [whole[0], cut, strange, whole[3]])])
    await r.store.lanes.add([LaneAdd("t/0", "waiting", cut, 1)])
    seen = Seen()
    async with running(r.host(seen)):
        await until(lambda: len(seen) == 3)
        await asyncio.sleep(3)
        letters = [letter async for letter in dead_letters.find(r.store, topic)]
    assert sorted(d.payload for d in seen.deliveries) == sorted([b"0", strange, b"3"])
    assert {letter.id for letter in letters} == {"t/0/mid@2", "waiting"}
    assert all(letter.payload == cut for letter in letters)
    assert all("damaged" in letter.reason for letter in letters)
    assert await r.lag("t") == 0


async def test_a_damaged_record_of_a_merging_topic_is_a_dead_letter_and_a_strangers_member_is_delivered(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"merging-{random.randrange(1 << 40):x}"
    store, raw = f"{topic}_0", redis.asyncio.Redis.from_url(redis_url)
    app = App(redis_url, database=f"sqlite:///{tmp_path}/catalog.db")
    seen: list[bytes] = []

    async def handle(m: Message) -> None:
        seen.append(m.payload)

    app.handler("*")(handle)
    records = {b"raw": b"\xff\x00 not a record", b"cut": b"1 900 short", b"note": b"1 3 \xc1\xc1\xc1body"}
    try:
        async with app:
            await app.create_topic(topic, 50, kind="priority", slots=1, merge="key")
            for key in [*records, b"sound"]:
                await app.publish(topic, b"payload of " + key, merge_key=key.decode(), priority=20)
            await raw.hset(f"body{{{store}}}", mapping=records)
            await raw.zadd(store, {b"a stranger's": 30})
            async with app.running():
                await until(lambda: len(seen) >= 2, 15)
                await until_dead(app, topic, len(records))
            letters = {letter.payload: letter.reason async for letter in app.dead_letters(topic)}
    finally:
        await raw.aclose()
    assert sorted(seen) == [b"a stranger's", b"payload of sound"]
    assert letters.keys() == {records[b"raw"], records[b"cut"], b"body"}
    assert all("damaged" in reason for reason in letters.values())
    told = [record.getMessage() for record in caplog.records if "dead letter" in record.getMessage()]
    assert told
    assert all(topic in line for line in told)


async def until_dead(app: App, topic: str, count: int) -> None:
    async with asyncio.timeout(15):
        while len([letter async for letter in app.dead_letters(topic)]) < count:
            await asyncio.sleep(0.05)

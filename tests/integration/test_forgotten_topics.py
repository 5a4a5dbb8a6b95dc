"""After topics were deleted, nothing in a process holds their names any more."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import pytest

import emq
from emq.runtime.environment import Environment
from emq.storage.log_store import Put, Read, Trim
from emq.topics.model import Kind, Topic, TopicOptions
from emq_stores.put_get import PutGetLogStore
from emq_stores.put_get import log_store as put_get_log
from support.holding import paths_to

MARK = "zz-gone"
TOPICS = 200

DOCUMENTED = (
    "app.store",  # the store's data: its seals refuse what producers with an old picture publish
    "app.host.work.lanes._due._heap",  # at most as many outdated entries as `SPARE` and the live ones
)
"""What may still hold a few names, or must."""


def topic(n: int) -> Topic:
    options = [
        {},
        {"pacing": "smooth"},
        {"ttl_s": 100.0},
        {"retention_s": 3600.0},
        {"max_length": 90},
    ]
    name = f"{MARK}-{['handled', 'received', 'pushed'][n % 3]}-{n}"
    if n % 4 == 3:
        kind = (Kind.PRIORITY, Kind.FIXED_TIME, Kind.RANGE_MERGE)[n // 4 % 3]
        range_ms = 50 if kind is Kind.RANGE_MERGE else None
        return Topic(name, 20.0, kind=kind, slots=2, options=TopicOptions(time_range_ms=range_ms))
    return Topic(name, 100.0, options=TopicOptions(**options[n % len(options)]))  # type: ignore[arg-type]


async def publish(app: emq.App, of: Topic) -> None:
    if of.kind is Kind.PRIORITY:
        await app.publish(of.name, b"x", priority=50)
    elif of.is_sorted:
        await app.publish(of.name, b"x", **({"delay_ms": 10} if of.kind is Kind.FIXED_TIME else {}))  # type: ignore[arg-type]
    else:
        await app.publish_many(of.name, [b"a", b"b", b"c"], key="k")
        await app.publish(of.name, b"later", delay_ms=3_600_000)
        await app.schedule(of.name, b"again", every_s=3600.0)


async def test_no_name_of_a_deleted_topic_is_held_by_an_app_and_its_host() -> None:
    app = emq.App("memory:", database="sqlite://")

    @app.handler("*-handled-*")
    async def handle(message: emq.Message) -> None:
        raise ValueError("fails, and is tried again later")

    async with app:
        run = asyncio.create_task(app.run())
        await asyncio.sleep(0)
        assert app.host is not None
        await app.host.running.wait()
        topics = [topic(n) for n in range(TOPICS)]
        await app.catalog.create_many(topics)
        for each in topics:
            await publish(app, each)
        received = 0
        for each in [t for t in topics if "-received-" in t.name][:30]:
            for delivery in await app.receive(each.name, timeout_s=0.5):
                delivery.ack()
                received += 1
        assert received >= 20
        assert paths_to(MARK, app=app)
        for each in topics:
            await app.admin.delete(each.name, force=True)
        await app.producer.refresh()
        for _ in range(30):
            if not (found := [p for p in paths_to(MARK, app=app) if not p.startswith(DOCUMENTED)]):
                break
            await asyncio.sleep(0.5)
        app.stop()
        await run
    assert not found, Counter(re.sub(r"\[.*?\]", "[]", p.partition(": ")[0]) for p in found)


async def test_a_put_get_store_remembers_and_polls_a_bounded_number_of_sealed_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Client:
        """Keeps everything, as such storage does."""

        def __init__(self) -> None:
            self.bodies: dict[str, list[bytes]] = {}
            self.gets = 0

        async def put(self, queue: str, body: bytes) -> int:
            self.bodies.setdefault(queue, []).append(body)
            return len(self.bodies[queue])

        async def get(self, queue: str, offset: int) -> bytes | None:
            self.gets += 1
            found = self.bodies.get(queue, [])
            return found[offset - 1] if 0 < offset <= len(found) else None

    monkeypatch.setattr(put_get_log, "MOST_SEALED", 20)
    client = Client()
    store = PutGetLogStore(client, Environment.ONLINE)
    for n in range(60):
        queue = f"{MARK}-{n}/0/mid"
        await store.put([Put(queue, [b"x"])])
        await store.read([Read(queue, 1, 10, 1)])
        assert await store.trim([Trim(queue, 1 << 40, None, seal=True)]) == [True]
    assert len(store.polls._schedule) == 0, "queues of deleted topics are polled for ever"
    assert (len(store._known), len(store._epochs)) == (20, 20)

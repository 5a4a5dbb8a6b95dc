"""What was deleted is forgotten: memory follows the topics that there are, not those that there were."""

from __future__ import annotations

import asyncio

import pytest

from emq.runtime.environment import Environment
from emq.storage.log_store import Put
from emq.topics.model import Kind, Topic, TopicOptions
from emq_push.endpoint import Endpoints
from emq_stores.sql import rows
from emq_stores.sql.rows import KnownRows
from emq_stores.sql.store import open_store
from support.rig import Rig, Seen
from support.virtual import virtual
from support.waiting import until

MANY = 10_000
AT_A_TIME = 100


def test_endpoints_of_ten_thousand_deleted_topics_are_forgotten() -> None:
    topics: dict[str, Topic] = {}
    endpoints = Endpoints(topics.get)
    for n in range(MANY):
        name = f"tenant-{n}"
        topics[name] = Topic(name, 1.0, options=TopicOptions(attributes={"push.url": "http://127.0.0.1:1/"}))
        assert endpoints(name) is not None
        topics.pop(f"tenant-{n - AT_A_TIME}", None)
    assert len(endpoints._known) <= 1_000
    assert all(endpoints(name) is not None for name in topics)


@virtual
async def test_a_producer_forgets_ten_thousand_deleted_topics(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emq.producer.router.CATALOG_POLL_S", -1.0)
    for start in range(0, MANY, 2_000):
        names = [f"t{n}" for n in range(start, start + 2_000)]
        await r.catalog.create_many([_topic(name) for name in names])
        for name in names[::20]:
            await r.producer.publish(name, b"x", **({"delay_ms": 1_000} if _topic(name).is_sorted else {}))
        await r.db.run(lambda c: c.exec_driver_sql("SELECT 1").scalar())
        for name in names:
            await r.catalog.delete(name)
    await r.producer.refresh()
    assert len(r.producer._router._routes) == 0


def _topic(name: str) -> Topic:
    if int(name[1:]) % 40 == 0:
        return Topic(name, 10.0, kind=Kind.FIXED_TIME, slots=2, options=TopicOptions())
    return Topic(name, 100.0, options=TopicOptions())


@virtual
async def test_a_host_forgets_topics_that_were_deleted(r: Rig) -> None:
    seen = Seen()
    async with r.consuming(seen) as host:
        for round_ in range(5):
            names = [f"t{round_}-{n}" for n in range(40)]
            await r.admin.create([Topic(name, 10.0) for name in names])
            for name in names:
                await r.producer.publish(name, b"x")
            await until(lambda expected=40 * (round_ + 1): len(seen) == expected)  # type: ignore[misc]
            for name in names:
                await r.admin.delete(name, force=True)
            await asyncio.sleep(5)
        await asyncio.sleep(10)
        sizes = {
            "topics": len(host.ownership.topics),
            "owned": len(host.ownership.owned),
            "groups": len(host.ownership.groups),
            "queues": len(host.ownership.queues),
            "lanes": len(host.work.lanes._groups),
            "ahead": len(host.work.readiness._ahead),
            "untrimmed": len(host.work.checkpointer._untrimmed),
            "starts": len(host.recorder._starts),
        }
        assert sizes == dict.fromkeys(sizes, 0)


async def test_a_sql_store_remembers_few_rows(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "KNOWN", 500)
    store = await open_store(f"sqlite:///{tmp_path}/store.db", Environment.ONLINE)
    try:
        known = store.log._known
        for start in range(0, 5_000, 250):
            await store.log.put([Put(f"t{n}/0/mid", [b"x"]) for n in range(start, start + 250)])
            assert len(known._queues) <= 500
            assert len(known._groups) <= 500
        assert isinstance(known, KnownRows)
        await store.log.put([Put("t0/0/mid", [b"again"])])
        [bounds] = await store.log.bounds(["t0/0/mid"])
        assert bounds.tail - bounds.head == 2
    finally:
        await store.close()

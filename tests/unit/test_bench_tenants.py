"""The benchmark of tenants counts what is there, and does not wait for what cannot come."""

from __future__ import annotations

from bench.support.stage import Stage
from bench.tenants import family, traces
from emq.topics.model import Topic


async def test_names_of_the_family_alone_are_counted_in_store_and_database() -> None:
    with Stage("sqlite", quiet=True) as stage:
        async with stage.app() as app:
            await family.create(app, most=10, idle_s=None)
            await app.admin.create([Topic("other", 1.0), Topic("tenant-of-nobody", 1.0)])
            await app.publish("other", b"x")
            before = await traces.found(app, stage)
            assert sum(before.rows.values()) == 0
            await family.publish(app, range(3))
            found = (await traces.found(app, stage)).beyond(before)
            assert found.rows == {"emq_topics": 3}
            assert (found.keys["store_messages"], found.keys["store_queues"]) == (3, 3)
            assert traces.text(found.rows) == "emq_topics 3"

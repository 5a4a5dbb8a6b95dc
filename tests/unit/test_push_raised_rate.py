"""A tenant whose rate is raised has its backlog delivered at the new rate."""

from __future__ import annotations

from collections import Counter

from emq import App, Message
from emq_push.records.endpoints import Endpoint, EndpointSettings
from emq_push.service import endpoint_topics
from emq_testing import Harness


async def test_an_old_backlog_drains_at_the_new_rate() -> None:
    app, starts = App("memory:"), Counter[int]()

    @app.handler("acme.*")
    async def handle(message: Message) -> None:
        starts[int(app.clock.now())] += 1

    endpoint = Endpoint(id="ep_1", tenant="acme", settings=EndpointSettings(url="https://a.example"))
    options = endpoint_topics.options(endpoint, {})
    async with Harness(app) as t:
        await app.create_topic("acme", qps=20)
        await app.create_topic(endpoint.topic, qps=20, budget="acme", **options)
        await t.advance(5)
        await app.publish_many(endpoint.topic, [b"x"] * 4_000)
        await t.advance(3)
        assert max(starts.values()) == 20
        for name in ("acme", endpoint.topic):
            await app.update_topic(name, qps=300)
        await t.advance(5)
        before = sum(starts.values())
        await t.advance(6)
        assert (sum(starts.values()) - before) / 6 > 290
        assert max(starts.values()) <= 300

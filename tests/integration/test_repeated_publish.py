"""A publish whose answer was lost is repeated under its id, and delivered once, as the topic's `dedupe_s` promises."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import emq
import emq_servers as servers
from emq.runtime import errors
from emq.runtime.clock import SystemClock
from emq.trail.writer import Trail
from emq_proof.proof import Expectations, prove
from support.proxies import CommitCutter, ReplyCutter
from support.waiting import until

COUNT = 40


async def until_settled(done: Callable[[], bool]) -> None:
    await until(done)
    await asyncio.sleep(0.3)  # for whatever else might come


async def repeated(publish: Callable[[], Awaitable[object]], lost: Counter[str], what: str) -> None:
    """Publish, and again after each lost answer, as a user would."""
    for _ in range(5):
        try:
            await publish()
        except errors.OutcomeUnknown:
            lost[what] += 1
        else:
            return
    raise AssertionError(f"{what}: no answer came")


@pytest.mark.parametrize("dedupe_s", [60.0, 0.0])
async def test_a_repeat_after_a_lost_answer_is_delivered_once(
    redis_server: servers.RedisServer, tmp_path: Path, dedupe_s: float
) -> None:
    """Without `dedupe_s` some messages come twice, which shows that the answers were lost after the store had them."""
    seen, lost = Counter[str](), Counter[str]()
    with servers.start_redis() as server:
        async with ReplyCutter(server.port) as proxy:
            trail = Trail.open(tmp_path / "trail", "app", SystemClock())
            app = emq.App(proxy.url, database=f"sqlite:///{tmp_path}/emq.db", trail=trail)

            @app.handler("*")
            async def handle(message: emq.Message) -> None:
                seen[message.id] += 1

            async with app:
                await app.create_topic("orders", qps=500, group_qps=100, dedupe_s=dedupe_s)
                producer = app.producer
                await producer.publish("orders", b"", message_id="first")  # now the server knows the script
                await producer.publish("orders", b"", message_id="later", delay_ms=1)
                async with app.running():
                    for n in range(COUNT):
                        if n % 4 == 0:
                            proxy.lose("put", 1)
                        await repeated(
                            lambda n=n: producer.publish("orders", b"x", message_id=f"one-{n}"), lost, "publish"
                        )
                    many = [f"many-{n}" for n in range(COUNT)]
                    proxy.lose("put", 1)
                    await repeated(
                        lambda: producer.publish_many("orders", [b"x"] * COUNT, message_ids=many), lost, "publish_many"
                    )
                    proxy.lose("lane_add", 1)
                    await repeated(
                        lambda: producer.publish("orders", b"x", message_id="delayed", delay_ms=50), lost, "delayed"
                    )
                    await until_settled(lambda: len(seen) == 2 * COUNT + 3)
    assert trail.close()
    assert lost["publish"] == COUNT // 4
    assert lost["publish_many"] >= 1
    assert lost["delayed"] >= 1
    twice = {id_ for id_, times in seen.items() if times > 1}
    if dedupe_s:
        assert not twice
        assert prove(tmp_path / "trail", Expectations(still_queued=0)).ok
    else:
        assert len(twice) >= COUNT // 4


@pytest.mark.parametrize("dedupe_s", [60.0, 0.0])
async def test_a_repeat_after_a_lost_commit_is_delivered_once(
    postgres_url: str, tmp_path: Path, dedupe_s: float
) -> None:
    seen, lost = Counter[str](), Counter[str]()
    topic = f"lost-commits-{os.getpid()}-{dedupe_s:g}"
    async with CommitCutter(postgres_url) as proxy:
        app = emq.App(proxy.url, database=f"sqlite:///{tmp_path}/emq.db")

        @app.handler("*")
        async def handle(message: emq.Message) -> None:
            seen[message.id] += 1

        async with app:
            await app.create_topic(topic, qps=500, group_qps=100, dedupe_s=dedupe_s)
            for n in range(5):
                proxy.lost = 1
                await repeated(lambda n=n: app.publish(topic, b"x", message_id=f"one-{n}"), lost, "publish")
                proxy.lost = 1
                await repeated(
                    lambda n=n: app.publish(topic, b"x", message_id=f"later-{n}", delay_ms=1), lost, "delayed"
                )
            proxy.lost = 1
            many = [f"many-{n}" for n in range(COUNT)]
            await repeated(lambda: app.publish_many(topic, [b"x"] * COUNT, message_ids=many), lost, "publish_many")
            async with app.running():
                await until_settled(lambda: len(seen) == COUNT + 10)
            await app.admin.delete(topic, force=True)
    assert lost == {"publish": 5, "delayed": 5, "publish_many": 1}
    twice = {id_ for id_, times in seen.items() if times > 1}
    assert twice == (set() if dedupe_s else seen.keys())

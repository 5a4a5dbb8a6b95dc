"""Real servers that come back without their last writes, under a live host: what is published after it is delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import emq
import emq_servers as servers
from emq.runtime import errors
from emq_servers.server import Server
from support.waiting import until

FEW, MANY = 40, 120


@pytest.fixture(params=["valkey from a snapshot", "valkey without persistence", "postgresql killed"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "postgresql killed":
        request.getfixturevalue("postgres_server")  # skips or fails where there is none
        # It writes its log to the disk every ten seconds: what was committed since is gone after the kill.
        with servers.start_postgres(extra_args=("-c", "wal_writer_delay=10s")) as postgres:
            yield postgres
        return
    request.getfixturevalue("redis_server")
    with servers.start_redis() as redis:
        yield redis


class Consumer:
    def __init__(self, app: emq.App) -> None:
        self.app = app
        self.handled: list[bytes] = []
        app.handler("*")(self.handle)

    async def handle(self, m: emq.Message) -> None:
        self.handled.append(m.payload)

    async def publish(self, name: str, count: int) -> set[bytes]:
        """Publish; answers what the store has acknowledged."""
        known = set()
        for i in range(count):
            payload = f"{name} {i}".encode()
            try:
                await self.app.publish("orders", payload)
                known.add(payload)
            except errors.StoreUnavailable:
                await asyncio.sleep(0.05)
        return known

    async def until(self, wanted: set[bytes]) -> None:
        await until(lambda: wanted <= set(self.handled))


async def save(server: Server, app: emq.App) -> None:
    """What is there now comes back after a kill; what comes now does not."""
    if isinstance(server, servers.PostgresServer):
        await app.publish("flush", b"x")  # a commit that is awaited takes all before it to the disk
    else:
        await app.store.log._server.command("SAVE")  # type: ignore[attr-defined]


async def test_what_is_published_after_a_server_has_lost_its_last_writes_is_delivered(
    server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = emq.Settings(checkpoint_s=0.2)
    local = Consumer(emq.App(server.url, database=f"sqlite:///{tmp_path}/catalog.db", options=settings))
    async with local.app:
        await local.app.create_topic("orders", 100, group_qps=100, priorities=("p",))
        await local.app.create_topic("flush", 100, durability="fsynced" if "postgres" in server.name else "accepted")
        run = asyncio.create_task(local.app.run())
        before = await local.publish("before", FEW)
        await local.until(before)
        if "without" not in request.node.name:
            await save(server, local.app)
        lost = await local.publish("lost", FEW)
        await local.until(lost)
        await asyncio.sleep(0.3)  # checkpointed
        server.kill()
        await asyncio.to_thread(server.restart)
        bounds = await looked_at(local.app)
        after = await local.publish("after", MANY)
        assert len(after) > FEW
        await local.until(after)
        host = local.app.host
        assert host is not None
        assert host.ownership.shrunk_queues == 1, f"the store kept {bounds}: nothing was lost"
        local.app.stop()
        await run


async def looked_at(app: emq.App) -> object:
    while True:
        try:
            return await app.store.log.bounds(["orders/0/p"])
        except errors.StoreUnavailable:
            await asyncio.sleep(0.02)

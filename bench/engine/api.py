"""Messages a second and waits of the HTTP API: publishing one by one and in batches, reading, and the first screen.

The API runs in this process, so that its CPU can be told from that of its callers, who are in a process of their own.
No host runs while messages are published. While deliveries and the first screen are read, a host with all tenants runs
beside the API, as with `emq up --api`, and delivers what was published.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Self

import aiohttp
import sqlalchemy as sa

import emq
from bench.support.endpoints import Endpoints
from bench.support.figures import Benchmark, Figure, percentile
from bench.support.stage import UNLIMITED, Stage
from emq.host import garbage_collection
from emq.runtime.settings import Address, load
from emq.topics.model import Topic, TopicOptions
from emq_push.cli.pushing import with_push
from emq_push.records.endpoints import Endpoint, EndpointSettings
from emq_push.records.endpoints import Endpoints as EndpointRows
from emq_push.records.tenants import Tenant, Tenants, TenantSettings
from emq_push.service.service import PushService
from emq_web.pages import gate
from emq_web.pages.rendering import PREFIX
from emq_web.serving import serving

HERE = "127.0.0.0/8"
QPS = 50.0
BATCH = 500
TENANT = "tenant-{}"
ENDPOINT = "ep"
PAYLOAD = '{"text":"' + "x" * 89 + '"}'
MESSAGE = f'{{"event_type":"bench.message","payload":{PAYLOAD}}}'
READERS = 4
"""Callers at once that read."""
SETTLE_S = 10.0
LOOK_S = 0.02
ROWS = 1_000
"""Tenants that one transaction creates."""


class Calls(NamedTuple):
    """What callers found.

    Attributes:
        began, ended: of all calls, by `time.monotonic()`.
        waits_ms: time of each call.
        failed: calls with another status than the wanted one.
    """

    began: float
    ended: float
    waits_ms: list[float]
    failed: int

    @property
    def per_s(self) -> float:
        return len(self.waits_ms) / (self.ended - self.began)


class Caller(NamedTuple):
    """Where callers call: address of the API, headers of each request, number of callers at once and of calls."""

    base: str
    headers: dict[str, str]
    at_once: int
    calls: int


class CpuLog:
    """Notes the CPU time of this process again and again, for spans that another process names; a context manager."""

    def __init__(self) -> None:
        self._notes: list[tuple[float, float]] = []

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._note())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        self._notes.append((time.monotonic(), time.process_time()))

    async def _note(self) -> None:
        while True:
            self._notes.append((time.monotonic(), time.process_time()))
            await asyncio.sleep(LOOK_S)

    def between(self, began: float, ended: float) -> float:
        """Return the CPU seconds from the last note before `began` to the first one after `ended`."""
        before = [cpu_s for at, cpu_s in self._notes if at <= began]
        after = [cpu_s for at, cpu_s in self._notes if at >= ended]
        return after[0] - before[-1]


async def calling(caller: Caller, call: Callable[[aiohttp.ClientSession], Awaitable[bool]]) -> Calls:
    """Call again and again, from several tasks at once; `call` returns whether it succeeded."""
    waits_ms: list[float] = []
    failed, left = 0, caller.calls

    async def one_after_the_other(session: aiohttp.ClientSession) -> None:
        nonlocal failed, left
        while left:
            left -= 1
            began = time.monotonic()
            succeeded = await call(session)
            failed += not succeeded
            waits_ms.append((time.monotonic() - began) * 1000)

    connector = aiohttp.TCPConnector(limit=caller.at_once)
    async with aiohttp.ClientSession(caller.base, headers=caller.headers, connector=connector) as session:
        began = time.monotonic()
        await asyncio.gather(*[one_after_the_other(session) for _ in range(caller.at_once)])
        return Calls(began, time.monotonic(), waits_ms, failed)


async def publish(caller: Caller, tenants: int, batch: int) -> Calls:
    """Publish to tenants at random: one message in each call, or `batch` of them."""
    random_ = random.Random(batch)
    body = (MESSAGE if batch == 1 else f'{{"messages":[{",".join([MESSAGE] * batch)}]}}').encode()
    headers = {"Content-Type": "application/json"}

    async def post(session: aiohttp.ClientSession) -> bool:
        path = f"/v1/tenants/{TENANT.format(random_.randrange(tenants))}/messages"
        async with session.post(path, data=body, headers=headers) as answer:
            await answer.read()
            return answer.status == 202

    return await calling(caller, post)


async def read(caller: Caller, path: str, tenants: int) -> Calls:
    """Read a path, in which `{}` stands for a tenant at random."""
    random_ = random.Random(1)

    async def get(session: aiohttp.ClientSession) -> bool:
        async with session.get(path.format(TENANT.format(random_.randrange(tenants)))) as answer:
            await answer.read()
            return answer.status == 200

    return await calling(caller, get)


async def create(app: emq.App, service: PushService, tenants: int, url: str) -> None:
    """Create tenants with an endpoint each, in bulk."""
    now_us = service.parts.now_us()
    topics, made = [], []
    for i in range(tenants):
        tenant = Tenant(TENANT.format(i), TenantSettings(qps=QPS), now_us, now_us)
        endpoint = Endpoint(
            id=ENDPOINT,
            tenant=tenant.id,
            settings=EndpointSettings(url=url),
            created_us=now_us,
            changed_us=now_us,
        )
        made.append((tenant, endpoint))
        topics.append(Topic(tenant.id, QPS))
        topics.append(Topic(endpoint.topic, QPS, options=TopicOptions(attributes={"push.url": url})))
    await app.admin.create(topics)
    tenant_rows, endpoint_rows = Tenants(service.parts.environment), EndpointRows(service.parts.environment)
    for first in range(0, tenants, ROWS):

        def save(connection: sa.Connection, some: list[tuple[Tenant, Endpoint]] = made[first : first + ROWS]) -> None:
            for tenant, endpoint in some:
                tenant_rows.save(connection, tenant)
                endpoint_rows.save(connection, endpoint)

        await service.parts.write(save)


async def run(stage: Stage, *, tenants: int, active: int, messages: int, callers: int, reads: int) -> dict[str, Any]:
    app = stage.app(options=load(environ={}, push_allow=HERE, api_requests_per_s=UNLIMITED))
    with Endpoints({"all": "good"}, work_s=0.0) as endpoints:
        async with with_push(app), app, serving(app, Address("127.0.0.1", 0)) as address:
            service = await PushService.open(app)
            stage.say(f"creating {tenants:,} tenants")
            await create(app, service, tenants, endpoints.url("all"))
            _, key = await service.keys.create("admin", "bench")
            caller = Caller(f"http://{address}", {"Authorization": f"Bearer {key}"}, callers, messages)
            garbage_collection.shorten_pauses()
            values = await _published(stage, caller, active)
            async with app.running():
                await asyncio.sleep(SETTLE_S)
                caller = caller._replace(at_once=READERS, calls=reads)
                listed = await stage.elsewhere(read, caller, "/v1/tenants/{}/deliveries?limit=50", active)
                session = await gate.sign_in(service, key)
                caller = caller._replace(headers={"Cookie": f"{gate.COOKIE}={session}"})
                shown = await stage.elsewhere(read, caller, f"{PREFIX}/", active)
            await service.close()
    return values | {
        "list_per_s": listed.per_s,
        "list_p50_ms": percentile(listed.waits_ms, 50),
        "list_p99_ms": percentile(listed.waits_ms, 99),
        "screen_per_s": shown.per_s,
        "screen_p50_ms": percentile(shown.waits_ms, 50),
        "screen_p99_ms": percentile(shown.waits_ms, 99),
        "failed": values["failed"] + listed.failed + shown.failed,
    }


async def _published(stage: Stage, caller: Caller, active: int) -> dict[str, Any]:
    values: dict[str, Any] = {"failed": 0}
    for name, batch in (("single", 1), ("batch", BATCH)):
        stage.say(f"publishing to {active:,} tenants, {batch} at a time, {caller.at_once} callers at once")
        mine = caller._replace(calls=max(caller.at_once, caller.calls // (1 if batch == 1 else 50)))
        async with CpuLog() as log:
            found = await stage.elsewhere(publish, mine, active, batch)
        values |= {
            f"{name}_per_s": found.per_s * batch,
            f"{name}_p50_ms": percentile(found.waits_ms, 50),
            f"{name}_p99_ms": percentile(found.waits_ms, 99),
            f"{name}_cpu_us": log.between(found.began, found.ended) / (mine.calls * batch) * 1e6,
        }
        values["failed"] += found.failed
    return values


BENCHMARK = Benchmark(
    run,
    options=(
        ("tenants", 20_000, "tenants, each with an endpoint"),
        ("active", 1_000, "tenants among them that messages are published to"),
        ("messages", 10_000, "messages published one by one; ten times as many in batches of 500"),
        ("callers", 32, "callers that publish at once"),
        ("reads", 500, "lists of deliveries read, and as many first screens"),
    ),
    figures=(Figure("failed", "==", 0),),
)

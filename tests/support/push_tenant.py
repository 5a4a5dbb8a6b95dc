"""A tenant of the push service with endpoints and deliveries, written beneath the API, as tests need them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Self

import msgspec
import pytest
import sqlalchemy as sa

from emq import App
from emq.storage import message
from emq.storage.lane_store import LaneAdd
from emq.storage.message import Message
from emq_push.records import deliveries, schema, tables
from emq_push.records.deliveries import Deliveries, Delivery, Selection
from emq_push.service.parts import Parts

ONE_SECOND_US = 1_000_000


class Tenant:
    """Writes rows and messages of one tenant.

    Attributes:
        id: the tenant's.
        parts: what services are made of.
    """

    def __init__(self, app: App, id_: str) -> None:
        self.app = app
        self.id = id_
        self.parts = Parts(app)
        self.rows = Deliveries(self.parts.environment)

    @classmethod
    async def make(cls, app: App, id_: str = "t1", endpoints: Sequence[str] = ("ep_a",), qps: float = 10) -> Self:
        await schema.ensure(app.database)
        made = cls(app, id_)
        await app.create_topic(id_, 100, exist_ok=True)
        for endpoint in endpoints:
            await made.add_endpoint(endpoint, qps)
        return made

    def topic(self, endpoint: str = "ep_a") -> str:
        return f"{self.id}.{endpoint}"

    async def add_endpoint(self, endpoint: str, qps: float = 10) -> None:
        attributes = {"push.url": "https://example.com/hook"}
        await self.app.create_topic(self.topic(endpoint), qps, attributes=attributes)
        row = {"environment": self.parts.environment, "topic": self.topic(endpoint), "tenant": self.id}
        row |= {"endpoint": endpoint, "body": "{}"}
        values = {**row, "created_us": 1, "changed_us": 1}
        await self.app.database.run(lambda c: c.execute(sa.insert(tables.endpoints).values(**values)))

    async def add(
        self,
        n: int,
        state: str = deliveries.DEAD,
        *,
        endpoint: str = "ep_a",
        event_type: str = "order.paid",
        first: int = 0,
        payload: bytes | None = b'{"n": 1}',
        next_us: int = 0,
        ago_s: int = 0,
    ) -> list[str]:
        """Write `n` messages with one delivery each, and the letters of dead ones; return the messages' ids.

        The last one was accepted a second ago, and each of the others a second before its successor.

        Args:
            ago_s: seconds by which all were accepted earlier.
        """
        now_us, topic = self.parts.now_us(), self.topic(endpoint)
        ids = [f"m{first + i:05d}" for i in range(n)]
        body = msgspec.json.encode({"content_type": "application/json"}).decode()
        mine = {"environment": self.parts.environment, "tenant": self.id}
        messages, rows = [], []
        for i, id_ in enumerate(ids):
            created_us = now_us - (ago_s + n - i) * ONE_SECOND_US
            known = {**mine, "message": id_, "created_us": created_us}
            messages.append(
                {**known, "event_type": event_type, "expires_us": 1 << 60, "payload": payload, "body": body}
            )
            ended = state != deliveries.PENDING
            rows.append(
                {
                    **known,
                    "topic": topic,
                    "state": state,
                    "attempts": int(ended),
                    "status": 0,
                    "reason": "",
                    "next_us": next_us,
                    "settled_us": created_us + 1 if ended else 0,
                }
            )

        def write(c: sa.Connection) -> None:
            c.execute(sa.insert(tables.messages), messages)
            c.execute(sa.insert(tables.deliveries), rows)

        await self.app.database.run(write, deadline_s=60)
        if state == deliveries.DEAD and payload is not None:
            await self.bury(ids, endpoint)
        return ids

    async def bury(self, ids: Sequence[str], endpoint: str = "ep_a", reason: str = "HTTP 500") -> None:
        """Add dead letters to the store."""
        topic = await self.app.catalog.get(self.topic(endpoint))
        now_ms = self.parts.now_us() // 1000
        adds = [
            LaneAdd(topic.group(0), id_, message.encode_retry(Message(id_, b"{}", topic=topic.name)), now_ms, reason)
            for id_ in ids
        ]
        await self.app.store.lanes.add(adds)

    async def lane(self, endpoint: str = "ep_a") -> tuple[list[str], list[str]]:
        """Return the ids that wait in the endpoint's lanes, and those of its dead letters."""
        topic = await self.app.catalog.get(self.topic(endpoint))
        waiting, dead = [], []
        for group in range(topic.groups):
            waiting += [e.id for e in await self.app.store.lanes.waiting(topic.group(group), 0, 100_000)]
            dead += [e.id for e in await self.app.store.lanes.dead(topic.group(group), (0, ""), 100_000)]
        return sorted(waiting), sorted(dead)

    async def states(self, endpoint: str = "") -> dict[str, str]:
        """Return the states of rows by message."""
        found: list[Delivery] = []
        while page := await self._page(endpoint, found[-1].place if found else None):
            found += page
        return {row.message: row.state for row in found}

    async def _page(self, endpoint: str, after: deliveries.Place | None) -> list[Delivery]:
        selection = Selection(endpoint)
        return await self.parts.read(lambda c: self.rows.read(c, self.id, selection, after=after, limit=1000))

    async def get(self, message_id: str, endpoint: str = "ep_a") -> Delivery:
        found = await self.parts.read(lambda c: self.rows.get(c, self.id, endpoint, message_id))
        assert found is not None
        return found


async def through(page_at: Callable[[str], Awaitable[Any]], limit: int) -> list[Any]:
    """Return the rows of all pages of a list, of at most `limit` rows each."""
    found: list[Any] = []
    page = await page_at("")
    for _ in range(1000):
        assert len(page.rows) <= limit
        found += page.rows
        if not page.next:
            return found
        page = await page_at(page.next)
    raise AssertionError("the list has no end")


def fixture(*endpoints: str) -> Any:
    """Return a fixture of the tenant `t1` with these endpoints, of an app in memory."""

    @pytest.fixture
    async def tenant() -> AsyncIterator[Tenant]:
        async with App(store="memory:") as app:
            yield await Tenant.make(app, endpoints=endpoints)

    return tenant

"""The sentinels that are asked for the master."""

from __future__ import annotations

import asyncio
from typing import Any

import redis.exceptions

from emq_stores.redis.sentinels import OneAtATime


class AnsweringSentinel:
    """Says who the master is, unless it is down."""

    down = False

    async def sentinel_masters(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self.down:
            raise redis.exceptions.ConnectionError
        state = {"ip": "10.0.0.1", "port": 7000, "is_master": True, "is_sdown": False, "is_odown": False}
        return {"main": {**state, "num-other-sentinels": 2}}


async def test_no_sentinel_is_forgotten_when_many_connections_look_for_the_master_at_once() -> None:
    answering = [AnsweringSentinel() for _ in range(3)]
    sentinels = OneAtATime([])
    sentinels.sentinels = list(answering)
    for first in answering:
        first.down = True
        found = await asyncio.gather(*(sentinels.discover_master("main") for _ in range(5)))
        assert found == [("10.0.0.1", 7000)] * 5
        assert set(sentinels.sentinels) == set(answering)
        first.down = False

"""The endpoints of the push benchmarks do what their kinds say; what they log is what arrived."""

from __future__ import annotations

import socket
import time

import aiohttp
import pytest

from bench.engine import troubles
from bench.support import endpoints
from bench.support.endpoints import Endpoints, Kind
from emq_push.resolver import AresResolver

HEADERS = {"webhook-id": "Id1", "webhook-timestamp": "1700000000"}


async def test_a_good_endpoint_answers_and_logs_what_arrived() -> None:
    before_us = time.time_ns() // 1000
    with Endpoints({"a": "good", "b": "good"}) as served:
        async with aiohttp.ClientSession() as session:
            for tenant in ("b", "a", "a"):
                async with session.post(served.url(tenant), data=b"x" * 100, headers=HEADERS) as answer:
                    assert answer.status == 204
        arrivals = served.stop()
    assert [(a.tenant, a.id, a.stamp_s) for a in arrivals] == [(t, "Id1", 1_700_000_000) for t in ("b", "a", "a")]
    assert before_us <= arrivals[0].arrived_us <= arrivals[-1].arrived_us <= time.time_ns() // 1000
    assert troubles.missed({"Id1": "here", "Id2": "there"}, arrivals) == 1


@pytest.mark.parametrize("kind", ["hang", "drip", "refuse"])
async def test_troubled_endpoints_do_not_answer(kind: Kind) -> None:
    with Endpoints({"a": "good", "b": kind}) as served:
        timeout = aiohttp.ClientTimeout(total=1.2)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            expected = aiohttp.ClientConnectorError if kind == "refuse" else TimeoutError
            with pytest.raises(expected):
                await session.post(served.url("b"), data=b"x", headers=HEADERS)
        assert served.stop() == []


async def test_the_name_server_tells_addresses_but_those_of_silent_names() -> None:
    with Endpoints({"a": "good", "b": "silent-names"}) as served:
        resolver = AresResolver([served.name_server])
        found = await resolver.resolve(f"a{endpoints.ZONE}", 80)
        assert [each["host"] for each in found] == [endpoints.address(0)]
        with pytest.raises(OSError, match=r".") as failed:
            await resolver.resolve(f"b{endpoints.ZONE}", 80)
        assert failed.value.errno == socket.EAI_AGAIN
        await resolver.close()

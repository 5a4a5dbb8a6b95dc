"""Every call of a host to its store is bounded in bytes, with bodies of 1 MiB and in all directions."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from emq.storage.message import Message
from support.doubles import Faulty
from support.rig import Rig, Seen, running
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual

MB = 1 << 20
MOST = 6 * MB
"""Bounds are 4 MiB, and one message may go beyond them; the rest is what surrounds the payloads."""


def weight(answer: Any) -> int:
    """Bytes in bodies and members of a call's arguments or answers."""
    if isinstance(answer, (bytes, bytearray)):
        return len(answer)
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        return sum(map(weight, answer))
    return 0


def weighed(half: Faulty, *names: str) -> dict[str, list[int]]:
    """The bytes of each call to the methods named, of its arguments and its answer, from now on."""
    found: dict[str, list[int]] = defaultdict(list)

    def watch(name: str) -> None:
        real = getattr(half._real, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            answer = await real(*args, **kwargs)
            found[name].append(weight(args) + weight(answer))
            return answer

        half.replace(name, call)

    for name in names:
        watch(name)
    return found


async def publish(r: Rig, topic: str, n: int, **options: Any) -> None:
    for i in range(n):
        await r.producer.publish(topic, i.to_bytes(4, "big") + bytes(MB - 64), **options)


async def test_claims_retries_and_deaths_of_large_messages_are_bounded_in_bytes(r: Rig) -> None:
    async def fail(m: Message) -> None:
        raise ValueError("no")

    await r.topic("t", 120, group_qps=10, backoff_s=(0.1,), jitter=0.0, max_attempts=2)
    await publish(r, "t", 60)
    await publish(r, "t", 60, delay_ms=500)
    seen = Seen(fail)
    host = r.host(seen)
    calls = weighed(host.work.lanes._store, "claim", "add", "settle")
    async with running(host):
        await until(lambda: host.work.settler.dead == 120, 120)
    for name in ("claim", "add", "settle"):
        assert sum(calls[name]) > 50 * MB
        assert max(calls[name]) <= MOST, name
    assert len(seen) == 240


@pytest.mark.parametrize("retry", ["rmq", "backoff"])
async def test_claims_and_settles_of_large_members_are_bounded_in_bytes(r: Rig, retry: str) -> None:
    async def fail_once(m: Message) -> None:
        if m.attempt == 1 and m.payload[3] % 2:
            raise ValueError("once")

    await r.topic("t", 120, kind="priority", slots=8, retry=retry, backoff_s=(0.1,), jitter=0.0)
    await publish(r, "t", 60, priority=100)
    seen = Seen(fail_once)
    host = r.host(seen)
    calls = weighed(host.work.slots._store, "claim", "settle")
    async with running(host):
        await until(lambda: len(seen) == 90, 120)
        await asyncio.sleep(2)
    assert max(calls["settle"]) <= MOST
    assert max(calls["claim"]) <= 2 * MOST  # a member that is its own body is seen twice

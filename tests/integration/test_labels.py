"""Keys, headers and merge keys: a topic bounds their bytes, and a host counts them as it counts payloads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from emq.runtime import errors
from emq.storage.message import Message
from support.rig import Rig, Seen
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual

MB = 1_000_000
KINDS = {
    "log": {},
    "delayed": {},
    "slots": {
        "kind": "range_merge",
        "priorities": (),
        "slots": 8,
        "time_range_ms": 1,
        "merge": "key",
        "ordering": "none",
    },
}
HUGE = {"a": "x" * MB}


async def publish_large(r: Rig, way: str, i: int) -> None:
    """Publish a message of one byte that travels with a megabyte."""
    options: dict[str, Any] = {"delay_ms": 1} if way == "delayed" else {}
    if way == "slots":
        options = {"merge_key": str(i)}
    await r.producer.publish("t", b"x", headers=HUGE, **options)


WAYS = {
    "publish": lambda p, k, h: p.publish("t", b"x", key=k, headers=h),
    "publish_many": lambda p, k, h: p.publish_many("t", [b"x"], keys=[k], headers=h),
    "publish_delayed": lambda p, k, h: p.publish("t", b"x", key=k, headers=h, delay_ms=10_000),
    "publish_many_delayed": lambda p, k, h: p.publish_many("t", [b"x"], key=k, headers=h, delay_ms=10_000),
    "schedule": lambda p, k, h: p.schedule("t", b"x", every_s=10, key=k, headers=h),
    "publish_sorted": lambda p, k, h: p.publish("s", b"x", key=k, headers=h),
    "publish_many_sorted": lambda p, k, h: p.publish_many("s", [b"x"], keys=[k], headers=h),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_publish_with_more_headers_and_keys_than_the_topic_takes_is_refused(r: Rig, way: str) -> None:
    await r.topic("t", max_headers=1_000)
    await r.topic("s", max_headers=1_000, **KINDS["slots"])
    publish = WAYS[way]
    for key, headers in (
        ("k" * 1_001, None),
        ("ü" * 501, None),
        (None, {"a": "x" * 968}),
        ("k" * 500, {"a": "x" * 468}),
    ):
        with pytest.raises(
            errors.InvalidMessage, match=r"key and headers of 100[12] bytes.*takes 1000 .its max_headers"
        ):
            await publish(r.producer, key, headers)
    await publish(r.producer, "k" * 500, {"a": "x" * 467})


async def test_a_merge_key_is_bounded_as_headers_are(r: Rig) -> None:
    await r.topic("t", max_headers=1_000, **KINDS["slots"])
    await r.producer.publish("t", b"x", merge_key=b"k" * 1_000)
    with pytest.raises(errors.InvalidMessage, match="merge key of 1001 bytes"):
        await r.producer.publish("t", b"x", merge_key=b"k" * 1_001)
    with pytest.raises(errors.InvalidMessage, match="merge key of 1001 bytes"):
        await r.producer.publish_many("t", [b"x"], merge_keys=[b"k" * 1_001])


@pytest.mark.parametrize("way", KINDS)
async def test_a_host_counts_headers_whatever_a_handler_makes_of_them(r: Rig, way: str) -> None:
    gate = asyncio.Event()

    async def handle(m: Message) -> None:
        m.payload, m.headers = b"y" * 10, None
        await gate.wait()

    await r.topic("t", max_headers=2 * MB, max_in_flight=2, **KINDS[way])
    for i in range(4):
        await publish_large(r, way, i)
    seen = Seen(handle)
    async with r.consuming(seen) as host:
        await until(lambda: len(seen) == 2)
        gauge = host.work.gauge
        assert gauge.flying == pytest.approx(2 * MB, rel=0.01)
        assert gauge.bytes == pytest.approx(gauge.messages * MB, rel=0.01)
        gate.set()
        await until(lambda: len(seen) == 4 and host.work.dispatcher.flight.count == 0)
        assert (gauge.flying, gauge.bytes, gauge.messages) == (0, 0, 0)

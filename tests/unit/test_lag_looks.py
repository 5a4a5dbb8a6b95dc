"""A host asks the store only for the sizes of lanes that hold something."""

from __future__ import annotations

import asyncio

import pytest

import emq
from emq.fetcher import readiness
from emq.host import lag_sampler
from emq.host.lag_parts import Part
from emq.storage.message import Message
from emq_stores.memory import MemoryStore
from support.doubles import FaultyStore
from support.rig import Rig, Seen
from support.virtual import virtual

LOOKS_S = 2 * lag_sampler.QUIET_S
"""Virtual seconds in which the host looks at all lanes once or more, at rest as at work."""


async def handle(message: Message) -> None:
    if message.payload == b"dead":
        raise emq.Reject("no such order")
    if message.payload == b"retry":
        raise emq.Retry(after_s=86_400)


@virtual
async def test_lanes_that_hold_nothing_are_not_asked_for(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_sampler, "GROUPS_AT_ONCE", 2)
    monkeypatch.setattr(readiness, "SWEEP_S", 1e6)  # which looks at every lane
    for name in ("a", "b", "dead", "retry", "delayed", "empty"):
        await r.topic(name, 10)
    store = FaultyStore(MemoryStore(r.world))
    async with r.consuming(Seen(then=handle), store=store) as host:
        await asyncio.sleep(LOOKS_S)
        asked = store.lanes.noted("inspect")
        await asyncio.sleep(LOOKS_S)
        assert {lane for call in asked for lane in call} == {"a/0", "b/0"}  # of the first groups, as a sign of life
        await r.producer.publish("dead", b"dead")
        await r.producer.publish("retry", b"retry")
        await r.producer.publish("delayed", b"x", delay_ms=86_400_000)
        await asyncio.sleep(LOOKS_S)
        counts = host.lag.counts
        assert (counts[Part.DEAD], counts[Part.DELAYED]) == (1, 2)
        assert "empty/0" not in {lane for call in asked for lane in call}

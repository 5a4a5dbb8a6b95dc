"""An exception that nobody expects, planted at a place of the engine, costs a second or two, and never a group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from emq.dispatch import settle_requests, settler
from emq.dispatch.dispatcher import Dispatcher
from emq.dispatch.flight import Flight
from emq.dispatch.settler import Settler
from emq.dispatch.starts import Starts
from emq.fetcher import readiness, slot_claimer
from emq.fetcher.slot_claimer import SlotClaimer
from emq.fetcher.slot_looks import SlotLooks
from emq.fetcher.slot_returns import SlotReturns
from emq.groups import buffer_room, reading_ahead
from emq.groups.offset_tracker import OffsetTracker
from emq.groups.owned import OwnedGroup, OwnedQueue, OwnedSlot
from emq.host.reports import Reports
from emq.runtime.troubles import Troubles
from emq.storage.message import Message
from support.rig import Rig, bound
from support.virtual import virtual
from support.waiting import until

pytestmark = virtual

SOON_S = 20.0
"""Most seconds until all is handled: two failures, each with the rest of its loop and a look at everything."""

PLACES: list[tuple[Any, str]] = [
    (readiness, "wanted"),
    (SlotLooks, "next_ms"),
    (SlotClaimer, "stuck"),
    (SlotClaimer, "look"),
    (slot_claimer, "decoded"),
    (Troubles, "apart"),
    (Flight, "places"),
    (Dispatcher, "_has_rest"),
    (Dispatcher, "_end_visit"),
    (Dispatcher, "go_on"),
    (reading_ahead, "startable"),
    (buffer_room, "room"),
    (OwnedGroup, "finish_key"),
    (OwnedGroup, "release_key"),
    (OwnedQueue, "begin_read"),
    (OffsetTracker, "finish"),
    (settle_requests, "_size_of"),
    (settler, "_decided"),
    (Settler, "_record"),
    (Settler, "acknowledge"),
    (Settler, "_to_send"),
    (OwnedSlot, "end_settling"),
    (SlotReturns, "give_back"),
    (Starts, "take"),
]


class Planted(Exception):
    """Nobody expects it."""


class Plant:
    """Stands for a function; once `armed`, the calls of these numbers fail. Attributes: failed: number of failures."""

    def __init__(self, real: Callable[..., Any], *calls: int) -> None:
        self._real, self._calls = real, calls
        self.armed = False
        self.count = self.failed = 0

    def function(self) -> Callable[..., Any]:
        def planted(*args: Any, **kwargs: Any) -> Any:
            self.count += self.armed
            if self.armed and self.count in self._calls:
                self.failed += 1
                raise Planted
            return self._real(*args, **kwargs)

        return planted


async def publish(r: Rig, tag: str, sent: set[str]) -> None:
    """Publish to queues with and without keys, lanes and slots; every fourth delivery fails at first."""
    for i in range(6):
        fails = "fails" if i == 3 else "works"
        for topic, how in (
            ("log", {}),
            ("log", {"delay_ms": 400}),
            ("keyed", {"key": f"k{i % 2}"}),
            ("timed", {"delay_ms": 200}),
            ("merged", {"time_range_ms": 100}),
            ("ranked", {"key": f"k{i % 2}", "merge_key": f"{tag}{i}", "priority": 40}),
        ):
            payload = f"{fails} {tag} {topic} {'later' if how and topic == 'log' else ''} {i}"
            await r.producer.publish(topic, payload.encode(), **how)
            sent.add(payload)


@pytest.mark.parametrize("calls", [(1,), (4, 5)], ids=["first", "later"])
@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
async def test_an_unexpected_failure_costs_no_group(r: Rig, owner: Any, name: str, calls: tuple[int, ...]) -> None:
    handled: set[str] = set()

    async def handle(m: Message) -> None:
        await asyncio.sleep(0.01)
        if m.payload.startswith(b"fails") and m.attempt == 1:
            raise ValueError("at first")
        handled.add(m.payload.decode())

    plant, sent = Plant(getattr(owner, name), *calls), set[str]()
    await r.topic("log", 60, group_qps=20, backoff_s=(0.5,))
    await r.topic("keyed", 60, group_qps=20, backoff_s=(0.5,))
    await r.topic("timed", 40, kind="fixed_time", slots=2)
    await r.topic("merged", 40, kind="range_merge", slots=2, retry="backoff", backoff_s=(0.5,))
    await r.topic("ranked", 40, kind="priority", slots=2, ordering="key", merge="key")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, plant.function())
        host = r.host(bound({"*": handle}))
        running = asyncio.create_task(host.run())
        await host.running.wait()
        plant.armed = True
        await publish(r, "a", sent)
        await asyncio.sleep(2)
        await publish(r, "b", sent)
        await until(lambda: handled == sent, SOON_S)
        await until(lambda: host.work.dispatcher.flight.count == 0, SOON_S)
        assert plant.failed == 0 or host.guard.broken.total() > 0, "the metrics count it"
        plant.armed = False
        host.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_an_unexpected_failure_at_an_expired_message_loses_none_of_those_that_expired_with_it(r: Rig) -> None:
    plant = Plant(Reports.unstarted, 1)
    plant.armed = True
    await r.topic("brief", 1, ttl_s=1)
    await r.producer.publish_many("brief", [b"x"] * 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reports, "unstarted", plant.function())
        host = r.host(bound({"*": lambda m: None}))
        running = asyncio.create_task(host.run())
        await asyncio.sleep(SOON_S)
        assert plant.failed == 1
        host.stop()
        await running
    assert await r.lag("brief") == 0

"""A deletion of a topic takes its groups over, and may take its time: it is not a host of another cluster."""

from __future__ import annotations

import asyncio
import functools
from typing import Any
from unittest import mock

import pytest

from emq.allocation.member import ClusterMembership
from emq.allocation.membership import Seat
from emq.offsets import deletion
from emq.storage.lane_store import LaneClaim
from emq.topics.model import Kind
from support.ensemble import MemoryEnsemble
from support.rig import Rig, Seen, rig, running
from support.virtual import virtual

TOLD = "a host outside of this cluster took group"


async def take(r: Rig, group: str) -> None:
    """Take a group as a host with another database does."""
    await r.store.real.lanes.claim([LaneClaim(group, 0, await r.next_epoch())], 0)


@pytest.mark.parametrize("kind", [Kind.LOG, Kind.PRIORITY])
@virtual
async def test_a_slow_deletion_is_told_apart_from_a_stranger(caplog: pytest.LogCaptureFixture, kind: Kind) -> None:
    async def generation(least: int) -> int:
        return await r.db.next_generation("online", least)

    async with rig() as r:
        await r.topic("orders", 20.0, kind=kind)
        await r.topic("mails", 20.0)
        seat = Seat(MemoryEnsemble(r.clock).tree(), "online", "a", generation, r.clock)
        closing = functools.partial(deletion.under_way, r.store.lanes, r.catalog)
        host = r.host(Seen(), "a", membership=ClusterMembership(seat, database=r.db, closing=closing))
        delete = r.catalog.delete

        async def slowly(*names: str) -> Any:
            await asyncio.sleep(30)
            return await delete(*names)

        async with running(host):
            with mock.patch.object(r.catalog, "delete", slowly):
                deleting = asyncio.create_task(r.admin.delete("orders", force=True))
                await asyncio.sleep(1)
                await host.ownership.look_at_lanes()  # so that the host hears that its group was taken
                await deleting
            assert TOLD not in caplog.text
            await take(r, "mails/0")
            await host.ownership.look_at_lanes()
            await asyncio.sleep(10)
            assert f"{TOLD} mails/0" in caplog.text
            assert "orders" not in caplog.text.partition(TOLD)[2]

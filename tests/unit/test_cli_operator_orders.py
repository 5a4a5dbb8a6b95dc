"""Orders of operators for hosts: none is lost, and none is written in vain."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from emq.allocation.records import Order, Paths
from emq.runtime import errors
from emq_cli import operator_orders
from emq_trace import cluster_view
from support.ensemble import MemoryEnsemble, MemoryTree
from support.virtual import LoopClock, virtual

pytestmark = virtual

PATHS = Paths("online")


@contextlib.asynccontextmanager
async def looking(ensemble: MemoryEnsemble | None = None) -> AsyncIterator[MemoryTree]:
    tree = (ensemble or MemoryEnsemble(LoopClock())).tree()
    async with cluster_view.opened(tree, "memory"):
        yield tree


async def test_two_orders_at_a_time_both_count() -> None:
    ensemble = MemoryEnsemble(LoopClock())
    ensemble.delay = lambda: 0.01
    async with looking(ensemble) as one, looking(ensemble) as other:
        for _ in range(2):  # the node is made, then written
            await asyncio.gather(
                operator_orders.give(
                    one, "online", "a", lambda order: msgspec.structs.replace(order, drain=not order.drain)
                ),
                operator_orders.give(other, "online", "a", lambda order: Order((order.weight or 0.0) + 1, order.drain)),
            )
        assert (await cluster_view.read(one, "online")).orders == {"a": Order(weight=2.0, drain=False)}


async def test_an_order_that_changes_nothing_writes_nothing() -> None:
    async with looking() as tree:
        assert await operator_orders.give(tree, "online", "a", lambda order: order) == Order()
        assert await tree.read(PATHS.order("a")) is None
        await operator_orders.give(tree, "online", "a", lambda order: Order(drain=True))
        await operator_orders.give(tree, "online", "a", lambda order: Order(drain=True))
        node = await tree.read(PATHS.order("a"))
        assert node is not None
        assert node.version == 0
        assert (await cluster_view.read(tree, "online")).hosts == ["a"]
        await operator_orders.give(tree, "online", "a", lambda order: Order())
        assert (await cluster_view.read(tree, "online")).hosts == []


async def test_an_order_is_for_a_host_that_there_can_be() -> None:
    async with looking() as tree:
        with pytest.raises(errors.InvalidSettings, match="'a/b'"):
            await operator_orders.give(tree, "online", "a/b", lambda order: Order(drain=True))
        await tree.create(PATHS.order("a"), b"not ours")
        with pytest.raises(errors.ForeignTree, match="/emq/online/operator/a"):
            await operator_orders.give(tree, "online", "a", lambda order: Order(drain=True))

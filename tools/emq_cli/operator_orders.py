"""Operator orders: an operator writes a host's weight or drain into the tree, and the leader plans by the order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from emq.allocation import records
from emq.allocation.records import Order, Paths
from emq.allocation.tree.protocol import Conflict, NodeExists, NodeMissing, Tree
from emq.runtime import errors

TRIES = 20


async def give(tree: Tree, environment: str, host: str, change: Callable[[Order], Order]) -> Order:
    """Replace the host's order by the order that `change` returns, and return the new order.

    The host need not be a member. If somebody else writes in between, `give` calls `change` again with the newer order,
    so that two orders at a time both count.

    Args:
        change: takes the present order, `Order()` if there is none yet; returns the new one.

    Raises:
        ClusterUnavailable: no server answers; call again, which does no harm.
        ForeignTree: EMQ did not write the order's node.
        InvalidSettings: `host` cannot be the name of a host.
    """
    records.validate_host(host)
    path = Paths(environment).order(host)
    for _ in range(TRIES):
        node = await tree.read(path)
        before = Order() if node is None else records.decode(node.data, Order, path)
        order = change(before)
        if order == before:
            return order
        with contextlib.suppress(NodeExists, NodeMissing, Conflict):
            if node is None:
                await tree.create(path, records.encode(order))
            else:
                await tree.write(path, records.encode(order), node.version)
            return order
    raise errors.ClusterUnavailable(f"others kept changing the order of host {host!r}; try again later")

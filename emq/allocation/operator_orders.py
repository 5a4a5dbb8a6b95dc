"""What an operator orders of a host, written into the coordination tree; whoever leads plans by it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from emq import errors
from emq.allocation import records
from emq.allocation.records import Order, Paths
from emq.allocation.tree.protocol import Conflict, NodeExists, NodeMissing, Tree

TRIES = 20


async def give(tree: Tree, environment: str, host: str, change: Callable[[Order], Order]) -> Order:
    """Write what `change` makes of the present order (none: `Order()`); answers it. The host need not be there.

    Where somebody else writes in between, `change` is asked again, so that two orders at a time both count.

    Raises:
        ClusterUnavailable: no server answers; repeat it, which does no harm.
        ForeignTree: the order's node was not written by EMQ.
        InvalidSettings: the name cannot be a host's.
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

"""The groups that move because of an operator's order, and the progress of their moves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Self

from emq.allocation import cluster_view
from emq.allocation.cluster_view import Holding, View
from emq.allocation.plan import drafting, handler_sets
from emq.allocation.plan.drafting import NOBODY
from emq.allocation.plan.plan import effective
from emq.allocation.plan.units import NO_UNITS, Units
from emq.allocation.records import Order
from emq.allocation.tree.protocol import Tree
from emq_cli import output

LOOK_S = 0.2

_ARRIVED = (Holding.HELD, Holding.NOBODYS)


class Moves:
    """A cluster before and after an order.

    Args:
        quotas: quota of each group in the catalog.
        units: unit of each topic that belongs to one.

    Attributes:
        before: the cluster before the order.
        now: the cluster at the latest look.
    """

    def __init__(self, tree: Tree, before: View, quotas: Mapping[str, float], units: Units = NO_UNITS) -> None:
        self.before = self.now = before
        self._tree = tree
        self._quotas = quotas
        self._units = units

    @classmethod
    async def of(cls, tree: Tree, environment: str, quotas: Mapping[str, float], units: Units = NO_UNITS) -> Self:
        """Look at the cluster, before the order. Raises as `emq.allocation.cluster_view.read`."""
        return cls(tree, await cluster_view.read(tree, environment), quotas, units)

    def would_leave_nobody(self, host: str, order: Order) -> bool:
        """Return whether this order would leave no member with a weight, while a member has one now."""
        orders = {**self.before.orders, host: order}
        after = drafting.shares(self.before.members, orders)
        return bool(effective(self.before.weights)) and not effective(after)

    async def settle(self, host: str, timeout_s: float, on_left: Callable[[int], object]) -> int:
        """Wait until the groups have moved as the orders say; return how many have not after `timeout_s`.

        This plans as the leader does: a plan that already fits the orders moves nothing.

        Args:
            host: a host that must also have let go of its lost groups.
            timeout_s: most seconds to wait.
            on_left: called at each look with the number of groups that still have to move.
        """
        now_s = asyncio.get_running_loop().time
        deadline = now_s() + timeout_s
        while True:
            self.now = await cluster_view.read(self._tree, self.before.environment)
            left = len(self._to_move()) or (0 if self.now.has_let_go(host) else 1)
            if not left or now_s() > deadline:
                return left
            on_left(left)
            await asyncio.sleep(LOOK_S)

    def counts(self) -> dict[str, int]:
        """Return the number of groups that each host got, the largest first."""
        before, now = self.before.owners, self.now.owners
        return dict(Counter(host for group, host in now.items() if before.get(group, host) != host).most_common())

    def in_words(self) -> str:
        """Return the moves as the end of a text."""
        counts = self.counts()
        if not counts:
            return "; nothing had to move"
        to = ", ".join(f"{output.number(n)} to {'nobody' if host == NOBODY else host}" for host, n in counts.items())
        return f": {output.count(sum(counts.values()), 'group')} moved, {to}"

    def _to_move(self) -> set[str]:
        owners = self.now.owners
        made = handler_sets.plan_for({}, self._quotas, self.now.weights, owners, (), self._units)
        wanted = drafting.places(made, self._quotas)
        asked = {group for group, host in wanted.items() if owners.get(group) != host}
        former = self.before.owners
        moving = {group for group, host in owners.items() if former.get(group) != host}
        return asked | {group for group in moving if self.now.holding(group) not in _ARRIVED}

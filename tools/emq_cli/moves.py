"""The groups that move because of an operator's order, and the progress of their moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from emq.allocation.plan import drafting
from emq.allocation.plan.drafting import NOBODY, Place, Previous
from emq.allocation.plan.plan import effective
from emq.allocation.records import Order
from emq.allocation.tree.protocol import Tree
from emq_cli import output
from emq_cli.bucket_contents import Amount
from emq_cli.cluster import DatabaseView
from emq_trace import cluster_view
from emq_trace.cluster_view import Holding, View

LOOK_S = 0.2

PLANNED_S = 2.0
"""Seconds after an order by which the leader has planned for it, as a rule."""

_ARRIVED = (Holding.HELD, Holding.NOBODYS)


class Moves:
    """A cluster before and after an order.

    Args:
        known: topics of the catalog, with what the leader plans for them.

    Attributes:
        before: the cluster before the order.
        now: the cluster at the latest look.
    """

    def __init__(self, tree: Tree, before: View, known: DatabaseView) -> None:
        self.before = self.now = before
        self._tree = tree
        self._known = known

    @classmethod
    async def of(cls, tree: Tree, environment: str, known: DatabaseView) -> Self:
        """Look at the cluster, before the order. Raises as `emq_trace.cluster_view.read`."""
        return cls(tree, await cluster_view.read(tree, environment), known)

    def would_leave_nobody(self, host: str, order: Order) -> bool:
        """Return whether this order would leave no member with a weight, while a member has one now."""
        orders = {**self.before.orders, host: order}
        after = drafting.shares(self.before.members, orders)
        return bool(effective(self.before.weights)) and not effective(after)

    async def settle(self, host: str, timeout_s: float, on_left: Callable[[int], object]) -> int:
        """Wait until the groups have moved as the orders say; return how many have not after `timeout_s`.

        Without families, this plans as the leader does: a plan that already fits the orders moves nothing. The loads of
        buckets are known to the candidates for the lead alone. So with families it gives the leader `PLANNED_S`, and
        waits until no host without a weight has anything, and all that moves has arrived.

        Args:
            host: a host that must also have let go of its lost groups.
            timeout_s: most seconds to wait.
            on_left: called at each look with the number of groups and buckets that still have to move.
        """
        now_s = asyncio.get_running_loop().time
        deadline = now_s() + timeout_s
        planned_s = now_s() + (PLANNED_S if self._known.families else 0.0)
        while True:
            self.now = await cluster_view.read(self._tree, self.before.environment)
            is_over = self.now.has_let_go(host) and now_s() >= planned_s
            left = len(self._to_move()) or (0 if is_over else 1)
            if not left or now_s() > deadline:
                return left
            on_left(left)
            await asyncio.sleep(LOOK_S)

    def amounts(self) -> dict[str, Amount]:
        """Return the groups and buckets that each host got, counted, the largest amount first."""
        before, now = self.before.owners, self.now.owners
        got: dict[str, list[str]] = {}
        for entry, host in now.items():
            if before.get(entry, host) != host:
                got.setdefault(host, []).append(entry)
        amounts = {host: self._known.contents.amount(entries) for host, entries in got.items()}
        return dict(sorted(amounts.items(), key=lambda each: each[1], reverse=True))

    def in_words(self) -> str:
        """Return the moves as the end of a text."""
        amounts = self.amounts()
        if not amounts:
            return "; nothing had to move"
        total = Amount(sum(each.groups for each in amounts.values()), sum(each.buckets for each in amounts.values()))
        to = ", ".join(
            f"{each if total.buckets else output.number(each.groups)} to {'nobody' if host == NOBODY else host}"
            for host, each in amounts.items()
        )
        return f": {total} moved, {to}"

    def _to_move(self) -> set[str]:
        owners, former = self.now.owners, self.before.owners
        if self._known.families:
            able = effective(self.now.weights)
            asked = {entry for entry, host in owners.items() if (host not in able if able else host != NOBODY)}
        else:
            places = {entry: Place(*owned) for entry, owned in self.now.groups.items()}
            _, wanted, _ = drafting.planned(
                self._known.loads, self._known.units, self.now.weights, self.now.members, Previous(places, {})
            )
            asked = {entry for entry, host in wanted.items() if owners.get(entry) != host}
        moving = {entry for entry, host in owners.items() if former.get(entry) != host}
        return asked | {entry for entry in moving if self.now.holding(entry) not in _ARRIVED}

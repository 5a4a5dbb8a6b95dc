"""Accounts of limits that tell how many tasks may start."""

from __future__ import annotations

import copy

from emq_scheduling.limits import accounts
from emq_scheduling.model import Costs


class Accounts(accounts.Accounts):
    """See `emq_scheduling.limits.accounts.Accounts`."""

    def room(self, resource: str, costs: Costs, now: float) -> int:
        """Return how many tasks with these costs may start now, of a limited number."""
        tried, count = copy.deepcopy(self), 0
        while tried.charge(resource, costs, now) is not None:
            count += 1
        return count

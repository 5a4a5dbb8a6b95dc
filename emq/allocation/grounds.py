"""What the leader plans by, beside the quotas of all groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from emq.allocation.plan.units import NO_UNITS, Units


class Grounds(NamedTuple):
    """Attributes:
    units: topic to its unit, whose groups must be on one host, for topics that share a budget.
    awake: bucket to the sum of the quotas of its groups that are awake. Who offers it may go on changing it: the leader
        looks at it now and then.
    """

    units: Units = NO_UNITS
    awake: Mapping[str, float] = {}


GROUNDS = Grounds()

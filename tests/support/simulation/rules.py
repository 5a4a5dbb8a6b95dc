"""The facts about a run that the judges need beside the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from emq.topics.shares import Division
from support.simulation.plans import TopicPlan

NOTICED_S = 15.0
"""Seconds for which hosts may still start messages that a store has lost, after it came back without them."""


class Rules(NamedTuple):
    """The facts on which the promises depend.

    Attributes:
        clean: nothing but clean joins, leaves and moves happened.
        divisions: of a topic, how its groups shared it, in order of time.
        informed: no host was kept from reading the catalog.
        plans: the topics, by name.
        calm: spans of true time in which no fault was under way, nor anything that one had left behind.
    """

    clean: bool
    divisions: Mapping[str, Sequence[Division]]
    informed: bool
    plans: Mapping[str, TopicPlan]
    calm: Sequence[tuple[float, float]] = ()

    @property
    def settled_at(self) -> float:
        """The time when everything had healed and no effect was left; infinite if that time never came."""
        return self.calm[1][0] if len(self.calm) > 1 else float("inf")

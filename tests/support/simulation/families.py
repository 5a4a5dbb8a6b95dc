"""The family of the topics of `support.simulation.brood`, and what hosts do to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from emq.topics.catalog import Catalog
from emq.topics.families import Family
from emq.topics.family_catalog import FamilyCatalog
from support.simulation.evidence import Evidence
from support.simulation.network import RemoteDatabase

if TYPE_CHECKING:
    from support.simulation.cluster import Cluster

FAMILY = "brood.*"

IDLE_S, PASS_S = 0.8, 0.5
"""The family's `idle_s`, and the pause between a host's looks: shorter than usual, so that topics sleep often."""


async def create(cluster: Cluster) -> None:
    """Create the family, as an operator does; none of its topics."""
    plan = next((plan for plan in cluster.schedule.topics if plan.sleeps), None)
    if plan is not None:
        topic = plan._replace(name=FAMILY).topic(plan.qps)
        await cluster.catalog.families.create(Family(topic))


class NotedCatalog(Catalog):
    """The catalog of a host; tells the evidence which topics it has put to sleep."""

    def __init__(self, db: RemoteDatabase, environment: str, evidence: Evidence) -> None:
        super().__init__(db, environment, None)
        self.families = _NotedFamilies(self, db, evidence)


class _NotedFamilies(FamilyCatalog):
    def __init__(self, catalog: Catalog, link: RemoteDatabase, evidence: Evidence) -> None:
        super().__init__(catalog, catalog._admission)
        self._link = link
        self._evidence = evidence

    async def sleep(self, versions: Mapping[str, int], also: Any) -> set[str]:
        if versions:
            self._link.observer = self._evidence.slept
        return await super().sleep(versions, also)

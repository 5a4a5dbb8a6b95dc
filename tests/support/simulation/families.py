"""The family of the topics of `support.simulation.brood`, and what hosts do to it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from emq.topics.catalog import Catalog
from emq.topics.families import Family
from emq.topics.family_catalog import FamilyCatalog
from support.simulation.evidence import Evidence
from support.simulation.network import RemoteDatabase

if TYPE_CHECKING:
    from support.simulation.cluster import Cluster

FAMILY = "brood.*"

PASS_S = 0.5
"""The pause between a host's looks: shorter than usual, so that topics sleep often."""


async def create(cluster: Cluster) -> None:
    """Create the family, as an operator does, and for most seeds its topics, so that their rows stay while they sleep.

    They have a setting of their own, or belong to no family.
    """
    plans = [plan for plan in cluster.schedule.topics if plan.sleeps]
    if not plans:
        return
    way = random.Random(f"{cluster.schedule.seed} rows").choice(("bare", "own", "plain"))
    if way != "plain":
        topic = plans[0]._replace(name=FAMILY).topic(plans[0].qps)
        await cluster.catalog.families.create(Family(topic))
    if way != "bare":
        topics = [plan.topic(plan.qps) for plan in plans]
        await cluster.admin.create([msgspec.structs.replace(topic, own=("max_attempts",)) for topic in topics])


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

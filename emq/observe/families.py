"""Administration of families: changes catalog and store in an order that loses no messages."""

from __future__ import annotations

from collections.abc import Sequence

from emq.observe.admin import Admin
from emq.topics import families
from emq.topics.catalog import Catalog
from emq.topics.families import Family
from emq.topics.family_rows import Stored


class Families:
    """The operations on families that the command line and programs use."""

    def __init__(self, catalog: Catalog, admin: Admin) -> None:
        self._catalog = catalog
        self._admin = admin

    async def create(self, family: Family) -> Family:
        """Create a family; see `FamilyCatalog.create`."""
        return await self._catalog.families.create(family)

    async def list(self) -> Sequence[Stored]:
        """Return all families, each with the number of its topics."""
        return await self._catalog.families.list()

    async def above(self, topic: str) -> Family | None:
        """Return the family that a topic of this name would belong to; None if it is below no family."""
        known = {stored.family.name: stored.family for stored in await self.list()}
        return families.above(topic, known)

    async def get(self, name: str) -> Stored:
        """Return a family. Raises `UnknownTopic` if there is no such family."""
        return await self._catalog.families.get(name)

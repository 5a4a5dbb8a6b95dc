"""Administration of families: changes catalog and store in an order that loses no messages."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from emq.observe.admin import Admin
from emq.runtime import errors
from emq.topics import budgets, families, family_file, secret_attributes
from emq.topics.catalog import Catalog
from emq.topics.families import Family
from emq.topics.family_catalog import Changed
from emq.topics.family_rows import Stored
from emq.topics.model import Topic

log = logging.getLogger(__name__)

AT_ONCE = 1_000
"""Most topics deleted together."""


class Declared(NamedTuple):
    """A family that a program declares.

    Attributes:
        update: True if a family of that name with other settings is to get these.
    """

    family: Family
    update: bool


class Families:
    """The operations on families that the command line and programs use."""

    def __init__(self, catalog: Catalog, admin: Admin) -> None:
        self._catalog = catalog
        self._admin = admin

    async def create(self, family: Family) -> Family:
        """Create a family; see `FamilyCatalog.create`."""
        return await self._catalog.families.create(family)

    async def list(self) -> Sequence[Stored]:
        """Return all families, each with the number of its topics that are awake.

        Raises `InvalidTopic` if this version cannot read one of them.
        """
        return [*(await self._catalog.families.all()).values()]

    async def matching(self, pattern: str) -> Sequence[Family]:
        """Return the families whose names match a shell pattern."""
        return [stored.family for stored in await self.list() if fnmatch.fnmatchcase(stored.family.name, pattern)]

    async def above(self, topic: str) -> str | None:
        """Return the name of the family that a topic of this name would belong to; None if it is below no family."""
        return families.above(topic, await self._catalog.families.all())

    async def get(self, name: str) -> Stored:
        """Return a family. Raises `UnknownTopic` if there is no such family."""
        return await self._catalog.families.get(name)

    async def topics(self, name: str) -> Sequence[Topic]:
        """Return the topics of a family, in the order of their names."""
        return await self._catalog.families.topics(name)

    async def set(self, name: str, changes: Mapping[str, Any], bounds: Mapping[str, Any] | None = None) -> Changed:
        """Change a family, and its topics in the settings that are not their own; see `FamilyCatalog.change`.

        Args:
            changes: settings of its topics: `qps`, `group_qps`, `state`, or single options by their names.
            bounds: fields of `Bounds`.
        """
        moves = {"qps", "group_qps"} & changes.keys()
        holding = await self._admin.holding(await self.topics(name)) if moves else {}
        changed = await self._catalog.families.change(name, changes, bounds or {}, holding)
        if moves:
            # Also topics that have not changed now: an earlier call may have failed half-way.
            await self._admin.follow(changed.before, changed.after or await self.topics(name))
        return changed

    async def put(self, wanted: Family) -> Family:
        """Create a family, or give it all settings and bounds of another one of its name; masked secrets stay."""
        wanted = self._catalog.families.checked(wanted)
        known = await self._catalog.families.all()
        there = known[wanted.name].family if wanted.name in known else None
        topic = secret_attributes.unmasked(wanted.topic, there.topic if there else None)
        if there is None:
            return await self.create(wanted)
        settings, bounds = family_file.changes(there, Family(topic, wanted.bounds))
        return (await self.set(wanted.name, settings, bounds)).family

    async def declare(self, declared: Sequence[Declared]) -> None:
        """Create the families of a program that do not exist yet, and update those that it wants to be as declared.

        Raises:
            InvalidTopic, UnknownTopic: as `FamilyCatalog.create`; `InvalidTopic` also for an update that cannot be.
        """
        if not declared:
            return
        known = await self._catalog.families.all()
        for wanted, update in declared:
            family = self._catalog.families.checked(wanted)
            if family.name not in known:
                with contextlib.suppress(errors.TopicExists):  # another program has just made it otherwise
                    await self.create(family)
                    continue
            elif families.same(known[family.name].family, family):
                continue
            if update:
                await self.put(wanted)
            else:
                log.warning(
                    "family %r exists and keeps its settings, which are not as declared; change it with: emq family "
                    "set, or declare it with update=True",
                    wanted.name,
                )

    async def delete(self, name: str, *, force: bool = False) -> tuple[int, int]:
        """Delete a family; return how many topics and messages went.

        Args:
            force: delete its topics, too, with their messages.

        Raises:
            UnknownTopic: there is no such family.
            StillConsumed: it has topics, and `force` is not set.
            StillNamed: other topics name one of its topics as their budget; delete those first.
        """
        topics = messages = 0
        if force:
            most = (await self.get(name)).family.bounds.max_topics
            await self.set(name, {}, {"max_topics": 0})  # from now on nobody makes topics
            try:
                while found := await self.topics(name):
                    some = [topic for topic in found if not topic.shared_s][:AT_ONCE]
                    with contextlib.suppress(errors.UnknownTopic):  # one has gone to sleep meanwhile
                        if some:
                            messages += await self._admin.delete_all(some)
                        else:  # only budgets of others are left, perhaps of each other
                            some = budgets.in_order(found)[-1:]
                            messages += await self._admin.delete(some[0].name, force=True)
                        topics += len(some)
            except errors.EMQError:  # the family stays
                with contextlib.suppress(errors.EMQError):
                    await self.set(name, {}, {"max_topics": most})
                raise
        await self._catalog.families.delete(name)
        return topics, messages

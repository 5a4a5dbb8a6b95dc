"""The catalog loop: follows the catalog's changes, and tells the membership which groups exist."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from emq.allocation.bucket_membership import BucketMembership
from emq.allocation.grounds import Grounds
from emq.groups.owned import OwnedGroup
from emq.host.group_quotas import GroupQuotas
from emq.host.options import CATALOG_POLL_S
from emq.host.orphan_watch import OrphanWatch
from emq.host.ownership import Ownership
from emq.host.surroundings import Storage
from emq.runtime import errors, pace
from emq.topics.topic_changes import Changes, Place

log = logging.getLogger(__name__)

TRY_AGAIN_S = 1.0

SPARING = 3
"""How many times as long as a look that found changes the loop rests at least, `poll_s` at most."""


Created = Callable[[Collection[str], Iterable[OwnedGroup]], None]


class CatalogLoop:
    """Reads the catalog's changes; `Ownership` applies them, and the membership learns the groups and their quotas.

    A host that starts reads all topics in parts, so that it consumes the first groups while it reads the others.

    Attributes:
        version: the version of the catalog that the host knows; 0 before the first look. At first, topics of families
            may be missing.
    """

    def __init__(
        self,
        storage: Storage,
        membership: BucketMembership,
        ownership: Ownership,
        orphans: OrphanWatch,
        poll_s: float = CATALOG_POLL_S,
    ) -> None:
        """Args:
        orphans: looks soon for the data of topics that the catalog may have forgotten.
        poll_s: seconds between looks at the catalog's version.
        """
        self._catalog = storage.catalog
        self._membership = membership
        self._ownership = ownership
        self._orphans = orphans
        self._poll_s = poll_s
        self._quotas = GroupQuotas(ownership.topics)
        self._refreshing = asyncio.Lock()
        self._when_deleted: list[Callable[[str], None]] = []
        self._when_created: list[Created] = []
        self._behind: Place | None = None  # where the first reading goes on
        self.version = 0

    def when_deleted(self, act: Callable[[str], None]) -> None:
        """Call `act` with the name of each topic that is deleted from now on."""
        self._when_deleted.append(act)

    def when_created(self, act: Created) -> None:
        """Call `act` after each look that finds new topics, with their groups, and those here of deleted topics with
        their names."""
        self._when_created.append(act)

    async def follow(self) -> None:
        """Look at the catalog's version every `poll_s`, and after each change in this process. Ends by cancellation."""
        loop = asyncio.get_running_loop()
        while True:
            began_s, before = loop.time(), self.version
            self._catalog.written.clear()
            try:
                await self.look()
                while self._behind is not None:
                    await self._read_on(self._behind)
                    await self.look()
            except errors.DatabaseUnavailable:
                await asyncio.sleep(TRY_AGAIN_S)  # the known catalog stays in use; the database has logged why
            if self.version != before:
                await asyncio.sleep(min(self._poll_s, SPARING * (loop.time() - began_s)))
            await pace.wait(self._catalog.written, self._poll_s)

    def told(self, topic: str) -> None:
        """Look at the catalog now if the topic is new."""
        if topic not in self._ownership.topics:
            self._catalog.written.set()

    async def look(self) -> None:
        """Read the catalog if it has changed.

        Raises:
            HostConflict: the environment's level was raised while this host was not seen, and this version cannot read
                all that is written there now: upgrade it.
        """
        async with self._refreshing:
            if self.version == 0:
                part, self._behind = await self._catalog.begun()
                await self._follow(part)
            changes = await self._catalog.changes_since(self.version)
            if changes.version != self.version:
                await self._follow(changes)

    async def _read_on(self, after: Place) -> None:
        """Read the next part of what was there at the first look; others may look at the catalog in between."""
        async with self._refreshing:
            part, behind = await self._catalog.more(self.version, after)
            await self._follow(part)
            self._behind = behind

    async def look_for(self, version: int) -> None:
        """Read the catalog unless the host already knows this version or a newer one."""
        if version > self.version:
            await self.look()

    async def _follow(self, changes: Changes) -> None:
        if changes.all:
            log.warning(
                "the database cannot tell all changes of the catalog since the last look; going by version %d",
                changes.version,
            )
            self._ownership.work.checkpointer.save_again(self._ownership.groups.values())
            self._orphans.soon()
        if gone := changes.gone(self._ownership.topics):
            # Deletions go first, alone: a topic deleted and created again has new groups under old names.
            self._quotas.forget(gone)
            await self._ownership.apply((), gone)
            for name in gone:
                for act in self._when_deleted:
                    act(name)
            await self._offer(changes.version)
        created = [topic for topic in changes.changed if topic.name not in self._ownership.topics]
        former = await self._ownership.apply(changes.changed, ())
        await self._quotas.follow(changes.changed, changes.families)
        await self._offer(changes.version)
        self.version = changes.version
        if created:
            groups = [topic.group(index) for topic in created for index in range(topic.groups)]
            for tell in self._when_created:
                tell(groups, former)

    async def _offer(self, version: int) -> None:
        """Tell the membership which groups exist, and their quotas or buckets, unless it knows."""
        moved, self._quotas.moved = self._quotas.moved, {}
        self._membership.place(moved)
        if self._quotas.is_new:
            quotas = self._quotas
            await self._membership.offer(quotas.all(), version, Grounds(quotas.units(), quotas.awake))
            self._quotas.is_new = False

"""The first publish to a topic that sleeps, or to a name below a family: wakes or makes the topic."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping

from emq.producer.rounds import Rounds
from emq.runtime import errors
from emq.storage.store import Store
from emq.topics import opening
from emq.topics.catalog import Catalog
from emq.topics.model import Topic

AT_ONCE = 5_000
"""Most topics made in one transaction."""

TELL_S = 0.5
"""Most seconds that publishes wait until hosts are told; after that, hosts look at the catalog in any case."""

Made = Mapping[str, Topic | errors.EMQError]
"""Topics by name; the error for a name that is refused; no entry for one below no family that is no topic."""


class FirstPublishes:
    """Wakes topics, and makes those of names that the catalog does not know and that lie below a family.

    Names that are wanted while a transaction is under way share the next one, so a flood of new names costs few
    transactions. The catalog is changed first; then the store opens queues that an earlier topic of the name left
    sealed. A process that dies in between leaves a topic that takes no messages: whoever publishes to it next finds
    that out, and opens it (`emq.producer.reopening`).
    """

    def __init__(self, store: Store, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog
        self._rounds = Rounds(self._make, "making of topics")

    async def make(self, names: Collection[str]) -> Made:
        """Wake or make topics; see `FamilyCatalog.make`.

        Raises:
            DatabaseUnavailable, StoreUnavailable: nothing was published; try again later.
        """
        made = await asyncio.shield(self._rounds.join(names))
        return {name: made[name] for name in names if name in made}

    async def _make(self, wanted: Collection[str]) -> Made:
        names, found = [*wanted], dict[str, Topic | errors.EMQError]()
        for start in range(0, len(names), AT_ONCE):
            made = await self._catalog.families.make(names[start : start + AT_ONCE])
            topics = [topic for topic in made.values() if isinstance(topic, Topic)]
            await asyncio.gather(opening.opened(self._store, topics), self._tell([topic.name for topic in topics]))
            found |= made
        return found

    async def _tell(self, names: Collection[str]) -> None:
        """Let hosts look at the catalog now, if the store can tell them."""
        if names and (tell := getattr(self._store, "tell", None)) is not None:
            with contextlib.suppress(errors.EMQError, TimeoutError):
                async with asyncio.timeout(TELL_S):
                    await tell(names)

    async def awaken(self, name: str) -> None:
        """Open a topic that takes no messages although the catalog has it, awake.

        Its host may be putting the topic to sleep, or somebody died in the middle of that, or before he opened it. The
        catalog is changed first, so that a host that puts it to sleep gives up; see `FamilyCatalog.sleep`.
        """
        topic = await self._catalog.families.awaken(name)
        if topic is not None:
            await opening.opened(self._store, [topic])

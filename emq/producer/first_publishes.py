"""The first publish of a process to a topic: reads the topic; wakes it, or makes it below a family, if need be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

from emq.producer.rounds import Rounds
from emq.runtime import errors
from emq.storage.store import Store
from emq.topics import opening
from emq.topics.catalog import Catalog
from emq.topics.family_catalog import Made

AT_ONCE = 5_000
"""Most topics read or made in one transaction."""

TELL_S = 0.5
"""Most seconds for telling hosts of new topics; after that, they look at the catalog in any case."""


class FirstPublishes:
    """Reads topics; wakes those that sleep, and makes those of names below a family that the catalog does not know.

    Names that are wanted while a transaction is under way share the next one, so a flood of new names costs few
    transactions. The catalog is changed first; then the store opens queues that an earlier topic of the name left
    sealed. A process that dies in between leaves a topic that takes no messages: whoever publishes to it next finds
    that out, and opens it (`emq.producer.reopening`). Hosts are told meanwhile; no publish waits for that.
    """

    def __init__(self, store: Store, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog
        self._rounds = Rounds(self._make, "making of topics")
        self._tellings = Rounds(self._tell, "telling of hosts")

    async def make(self, names: Collection[str]) -> Made:
        """Return topics; wake or make them before, if need be. See `FamilyCatalog.make`.

        Raises:
            DatabaseUnavailable, StoreUnavailable: nothing was published; try again later.
        """
        made = await asyncio.shield(self._rounds.join(names))
        return made._replace(found={name: made.found[name] for name in names if name in made.found})

    async def _make(self, wanted: Collection[str]) -> Made:
        names, rounds = [*wanted], list[Made]()
        for start in range(0, len(names), AT_ONCE):
            made = await self._catalog.families.make(names[start : start + AT_ONCE])
            if made.begun:
                self._tellings.join(topic.name for topic in made.begun)
            if made.again:
                await opening.opened(self._store, made.again)
            rounds.append(made)
        found = {name: one for made in rounds for name, one in made.found.items()}
        return Made(found, min(made.version for made in rounds))

    async def _tell(self, names: Collection[str]) -> None:
        """Let hosts look at the catalog now, if the store can tell them."""
        if (tell := getattr(self._store, "tell", None)) is not None:
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

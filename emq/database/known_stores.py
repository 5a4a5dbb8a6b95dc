"""The stores to which the progress in a database belongs.

An offset has a meaning in one store only. So the database keeps checkpoints and passages under a *scope*, which names
the environment and the store's identity (`emq.storage.identity`): `online@3f9c0a51d2e7`. A host with another store
reads that store from its beginning. The progress in the first store stays, for hosts that come back to it.

Progress from before stores had identities has the bare name of the environment as its scope, which goes to the store of
the first host.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import sqlalchemy as sa

from emq.database import tables
from emq.database.database import Database, next_value
from emq.runtime import errors
from emq.storage import identity
from emq.storage.lane_store import LaneStore

log = logging.getLogger(__name__)

_table = tables.stores
_checkpoints = tables.checkpoints

WITHOUT = "without identity"
"""Stands for the identity of a store that no host has ever opened, for processes that only read."""


class KnownStore(NamedTuple):
    """Attributes:
    identity: the store's identity.
    scope: the scope of its progress.
    place: the store's URL without its password, as the last host gave it.
    """

    identity: str
    scope: str
    place: str


class KnownStores:
    """Finds the scope of one open store, and notes the store in the database.

    Args:
        lanes: those of the open store.
        place: the store's URL without its password.
    """

    def __init__(self, database: Database, environment: str, lanes: LaneStore, place: str) -> None:
        self._database = database
        self._environment = str(environment)
        self._lanes = lanes
        self._place = place
        self._identity = ""
        self._scope = ""

    async def scope(self, *, writes: bool = False) -> str:
        """Return the scope of the store's progress. Notes nothing; asks store and database once only.

        Args:
            writes: the caller writes to the scope: give the store an identity if it has none.

        Raises:
            StoreUnavailable, StoreFull, DatabaseUnavailable: try again later.
        """
        if self._scope:
            return self._scope
        found = await (identity.keep(self._lanes) if writes else identity.find(self._lanes))
        scope = await self._database.run(lambda c: self._scope_of(c, found or WITHOUT), read_only=True)
        if found is not None:
            self._identity, self._scope = found, scope
        return scope

    async def arrive(self) -> None:
        """Note that the calling host consumes from the store; log a warning if earlier hosts had another store.

        Raises:
            StoreUnavailable, DatabaseUnavailable: nothing was noted; try again later.
        """
        try:
            found = await identity.keep(self._lanes)
        except errors.StoreFull as exc:
            # A new or emptied store is not full, so this one is the store that the database knows.
            current = await self._database.run(self._newest, read_only=True)
            self._scope = current.scope if current is not None else self._environment
            log.warning("%s; the store gets its identity at a later start", exc)
            return
        self._scope, former, is_new = await self._database.run(lambda c: self._note(c, found))
        self._identity = found
        if former is not None:
            self._tell(former, is_new=is_new)

    async def keep(self) -> None:
        """Give the store its identity again if it has lost it; take over another one if another host was quicker.

        A host calls this when the store has lost messages. Does nothing if the store does not answer.
        """
        if not self._identity:
            return
        try:
            if await identity.keep(self._lanes, self._identity) != self._identity:
                await self.arrive()
        except errors.EMQError as exc:
            log.warning("%s; the store's identity was not looked at", exc)

    def _tell(self, former: KnownStore, *, is_new: bool) -> None:
        begins = "from its first message on" if is_new else "from where hosts had come in it"
        if former.place == self._place:
            log.warning(
                "the store %s was emptied or replaced (identity %s, before %s): it is consumed %s, since the "
                "checkpoints of before do not hold for it; they are kept for the store with the former identity",
                *(self._place, self._identity, former.identity, begins),
            )
            return
        log.warning(
            "hosts of the database %s consumed from the store %s (identity %s) before, this host has the store %s "
            "(identity %s): it is consumed %s. Messages and checkpoints of the other store stay as they are; "
            "name that store (--store, EMQ_STORE) to go on there",
            *(self._database.shown, former.place, former.identity, self._place, self._identity, begins),
        )

    # ------------------------------------------------------------------------------------------------- transactions

    def _note(self, connection: sa.Connection, found: str) -> tuple[str, KnownStore | None, bool]:
        """Make the store the newest; return its scope, the former newest store if it is another one, and whether the
        store is new to the database."""
        newest = self._newest(connection)
        if newest is not None and (newest.identity, newest.place) == (found, self._place):
            return newest.scope, None, False
        # The row of the counter stays locked until the end, so hosts come one after the other.
        number = next_value(connection, self._environment, "stores")
        newest = self._newest(connection)
        mine = (_table.c.environment == self._environment) & (_table.c.identity == found)
        known = connection.execute(sa.select(_table.c.scope).where(mine)).scalar()
        scope = known or self._scope_of(connection, found)
        if known is None:
            values = {"environment": self._environment, "identity": found, "scope": scope}
            connection.execute(sa.insert(_table).values(**values, place=self._place, number=number))
        else:
            connection.execute(sa.update(_table).where(mine).values(place=self._place, number=number))
        same = newest is None or newest.identity == found
        return scope, None if same else newest, known is None

    def _newest(self, connection: sa.Connection) -> KnownStore | None:
        query = sa.select(_table.c.identity, _table.c.scope, _table.c.place)
        query = query.where(_table.c.environment == self._environment).order_by(_table.c.number.desc()).limit(1)
        row = connection.execute(query).one_or_none()
        return None if row is None else KnownStore(*row)

    def _scope_of(self, connection: sa.Connection, found: str) -> str:
        """Return the scope of a store: the noted one; else the bare environment, if its progress has no store yet."""
        stores = sa.select(_table.c.identity, _table.c.scope).where(_table.c.environment == self._environment)
        noted = {str(row.identity): str(row.scope) for row in connection.execute(stores)}
        if found in noted:
            return noted[found]
        if not noted:
            old = sa.select(_checkpoints.c.queue).where(_checkpoints.c.environment == self._environment).limit(1)
            if connection.execute(old).first() is not None:
                return self._environment
        return f"{self._environment}@{found}"

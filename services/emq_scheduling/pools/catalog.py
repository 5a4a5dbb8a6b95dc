"""The catalog of pools: one row each, with a version that grows with each change, and all versions so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from emq.database.database import QUICK_S
from emq.runtime import errors
from emq.runtime.inputs import alike, shown
from emq_scheduling.database import schema, tables
from emq_scheduling.model import Pool
from emq_scheduling.pools import documents

_pools, _versions = tables.pools, tables.versions
TRIES = 20
"""Attempts of `change` before it gives up because others change the pool as well."""

Also = Callable[[sa.Connection], None]
"""Writes more in the transaction of a change, such as an entry of an audit log."""

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Pool, strict=False)


class Stored(NamedTuple):
    """Attributes:
    version: grows with each change of the pool, also over its deletion.
    changed_us: when it was changed, by the database's clock.
    """

    pool: Pool
    version: int
    changed_us: int


class PoolCatalog(schema.Tables):
    """Reads and changes the pools of an environment.

    What returns pools raises `InvalidPool` if a newer EMQ wrote one.
    """

    async def get(self, name: str) -> Stored:
        """Return a pool. Raises `UnknownPool`."""

        def read(connection: sa.Connection) -> Stored:
            row = connection.execute(sa.select(_pools).where(*self._is(name))).one_or_none()
            if row is None:
                raise self._unknown(connection, name)
            return _stored(row)

        return await self.run(read, read_only=True, deadline_s=QUICK_S)

    async def version(self, name: str) -> int:
        """Return the version of a pool, 0 if there is no such pool. Reads one number, so hosts may ask often."""
        query = sa.select(_pools.c.version).where(*self._is(name))
        found = await self.run(lambda c: c.execute(query).scalar_one_or_none(), read_only=True, deadline_s=QUICK_S)
        return int(found or 0)

    async def versions(self) -> dict[str, int]:
        """Return the version of each pool, by name."""
        query = sa.select(_pools.c.pool, _pools.c.version).where(_pools.c.environment == self._environment)
        rows = await self.run(lambda c: list(c.execute(query)), read_only=True, deadline_s=QUICK_S)
        return {row.pool: int(row.version) for row in rows}

    async def list(self, after: str = "", limit: int | None = None) -> list[Stored]:
        """Return pools by name.

        Args:
            after: only those whose names come after this one.
            limit: most pools; None for all.
        """
        mine = (_pools.c.environment == self._environment, _pools.c.pool > after)
        query = sa.select(_pools).where(*mine).order_by(_pools.c.pool).limit(limit)
        return await self.run(lambda c: [_stored(row) for row in c.execute(query)], read_only=True)

    async def put(self, pool: Pool, version: int | None = None, *, also: Also | None = None) -> Stored:
        """Create or change a pool.

        Args:
            version: the one that the pool must have now; 0 if there must be no such pool; None to overwrite any.
            also: called in the transaction of the change; raises nothing.

        Raises:
            InvalidPool: a value is wrong; the text names it.
            ChangedMeanwhile: the pool has another version; read it again.
        """
        pool = documents.checked(pool)

        def save(connection: sa.Connection) -> Stored:
            stored = self._put(connection, pool, version)
            if also is not None:
                also(connection)
            return stored

        return await self.run(save)

    async def change(self, name: str, fn: Callable[[Pool], Pool]) -> Stored:
        """Change a pool as it is now; `fn` returns the changed pool and may be called several times.

        Raises:
            UnknownPool: there is no such pool.
            InvalidPool: the changed pool is wrong, or has another name; nothing was changed.
            ChangedMeanwhile: others change the pool all the time; try again.
        """
        for _ in range(TRIES):
            found = await self.get(name)
            changed = documents.checked(fn(found.pool))
            if changed.name != name:
                raise errors.InvalidPool(f"pool {name!r}: its name may not change; import a pool of the new name")
            if changed == found.pool:
                return found
            try:
                return await self.put(changed, found.version)
            except errors.ChangedMeanwhile:
                continue
        raise errors.ChangedMeanwhile(f"pool {name!r} was changed by others {TRIES} times meanwhile; try again")

    async def delete(self, name: str, version: int | None = None, *, also: Also | None = None) -> None:
        """Delete a pool from the catalog. Its records stay until they are too old.

        Args:
            version: the one that the pool must have now; None for any.
            also: called in the transaction of the deletion; raises nothing.

        Raises:
            UnknownPool: there is no such pool.
            ChangedMeanwhile: the pool has another version; read it again.
        """

        def remove(connection: sa.Connection) -> None:
            gone = sa.delete(_pools).where(*self._is(name)).returning(_pools.c.version)
            found = connection.execute(gone).scalar_one_or_none()
            if found is None:
                raise self._unknown(connection, name)
            if version is not None and version != found:
                raise errors.ChangedMeanwhile(f"pool {name!r} is at version {found}, not {version}; read it again")
            self._note(connection, name, self._last(connection, name) + 1, "")
            if also is not None:
                also(connection)

        await self.run(remove)

    async def history(self, name: str) -> dict[int, Pool]:
        """Return all versions of a pool that are still kept, by number, those before a deletion included."""
        mine = (_versions.c.environment == self._environment, _versions.c.pool == name, _versions.c.body != "")
        query = sa.select(_versions.c.version, _versions.c.body).where(*mine).order_by(_versions.c.version)
        rows = await self.run(lambda c: [tuple(row) for row in c.execute(query)], read_only=True)
        return {version: _decoded(name, body) for version, body in rows}

    def _is(self, name: str) -> tuple[sa.ColumnElement[bool], ...]:
        return (_pools.c.environment == self._environment, _pools.c.pool == name)

    def _put(self, connection: sa.Connection, pool: Pool, version: int | None) -> Stored:
        # On PostgreSQL the row lock keeps others from reading the same version; SQLite has one writer anyway.
        query = sa.select(_pools.c.version).where(*self._is(pool.name)).with_for_update()
        found = int(connection.execute(query).scalar_one_or_none() or 0)
        if version is not None and version != found:
            raise errors.ChangedMeanwhile(
                f"pool {pool.name!r} is at version {found}, not {version}; read the pool again and repeat the change"
                if found
                else f"pool {pool.name!r} is not there any more; import it again"
            )
        body = _encode(pool).decode()
        number = (found or self._last(connection, pool.name)) + 1
        now_us = self.time_us(connection)
        values = {"body": body, "version": number, "changed_us": now_us}
        if found:
            connection.execute(sa.update(_pools).where(*self._is(pool.name)).values(**values))
        else:
            try:
                own = {"environment": self._environment, "pool": pool.name}
                connection.execute(sa.insert(_pools).values(**own, **values))
            except sa.exc.IntegrityError:
                raise errors.ChangedMeanwhile(f"pool {pool.name!r} was created meanwhile; read it") from None
        self._note(connection, pool.name, number, body)
        return Stored(pool, number, now_us)

    def _last(self, connection: sa.Connection, name: str) -> int:
        """Return the highest version that a pool of the name has had."""
        mine = (_versions.c.environment == self._environment, _versions.c.pool == name)
        return int(connection.execute(sa.select(sa.func.max(_versions.c.version)).where(*mine)).scalar() or 0)

    def _note(self, connection: sa.Connection, name: str, version: int, body: str) -> None:
        own = {"environment": self._environment, "pool": name, "version": version, "body": body}
        connection.execute(sa.insert(_versions).values(**own, changed_us=self.time_us(connection)))

    def _unknown(self, connection: sa.Connection, name: str) -> errors.UnknownPool:
        query = sa.select(_pools.c.pool).where(_pools.c.environment == self._environment).order_by(_pools.c.pool)
        known = list(connection.execute(query).scalars())
        names = f"{', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
        there = f"the pools are {names}" if known else "no pool has been made yet"
        return errors.UnknownPool(f"there is no pool {shown(name)}{alike(name, known) or ';'} {there}")


def _stored(row: sa.Row[tuple[object, ...]]) -> Stored:
    return Stored(_decoded(row.pool, row.body), int(row.version), int(row.changed_us))


def _decoded(name: str, body: str) -> Pool:
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as exc:
        raise errors.InvalidPool(
            f"pool {name!r} in the database cannot be read ({exc}); a newer EMQ wrote it, so upgrade this installation"
        ) from exc

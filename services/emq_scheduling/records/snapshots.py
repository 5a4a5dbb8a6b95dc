"""The latest snapshot of each pool, written by its owner and read by everybody else."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from emq.database.database import QUICK_S
from emq_scheduling.database import schema, tables
from emq_scheduling.records.ends import us
from emq_scheduling.records.snapshot import Snapshot

_snapshots = tables.snapshots
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Snapshot, strict=False).decode


class Snapshots(schema.Tables):
    """Writes and reads snapshots."""

    async def save(self, snapshot: Snapshot) -> None:
        """Write the snapshot of a pool; an older one than the database has is ignored."""
        key = {"environment": self._environment, "pool": snapshot.pool}
        values = {"body": _encode(snapshot).decode(), "at_us": us(snapshot.at)}

        def write(connection: sa.Connection) -> None:
            insert = (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(_snapshots)
            newer = insert.excluded.at_us >= _snapshots.c.at_us
            update = insert.on_conflict_do_update(index_elements=list(key), set_=values, where=newer)
            connection.execute(update.values(**key, **values))

        await self.run(write, deadline_s=QUICK_S)

    async def load(self, pool: str) -> Snapshot | None:
        """Return the latest snapshot of a pool; None if nobody has scheduled it yet, or another EMQ wrote it."""
        return (await self._read(_snapshots.c.pool == pool)).get(pool)

    async def some(self, pools: Collection[str]) -> dict[str, Snapshot]:
        """Return the latest snapshots of these pools, by pool; without those that have none."""
        return await self._read(_snapshots.c.pool.in_(list(pools))) if pools else {}

    async def all(self) -> dict[str, Snapshot]:
        """Return the latest snapshots by pool."""
        return await self._read(sa.true())

    async def drop(self, pool: str) -> None:
        """Forget the snapshot of a pool. Safe to repeat."""
        where = (_snapshots.c.environment == self._environment, _snapshots.c.pool == pool)
        await self.run(lambda c: c.execute(sa.delete(_snapshots).where(*where)), deadline_s=QUICK_S)

    async def _read(self, which: sa.ColumnElement[bool]) -> dict[str, Snapshot]:
        query = sa.select(_snapshots.c.body).where(_snapshots.c.environment == self._environment, which)
        bodies = await self.run(lambda c: list(c.execute(query).scalars()), read_only=True)
        found: dict[str, Snapshot] = {}
        for body in bodies:
            try:
                snapshot = _decode(body)
            except msgspec.DecodeError:  # of a version with other fields; its owner writes another one soon
                continue
            found[snapshot.pool] = snapshot
        return found

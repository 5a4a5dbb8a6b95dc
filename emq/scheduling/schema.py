"""Sets up the tables of resource scheduling in the database of the catalog."""

from __future__ import annotations

from emq.database import Database, Schema
from emq.database import schema as schemas
from emq.database.database import LONG_S, QUICK_S
from emq.scheduling import tables

SCHEDULING = Schema(tables.metadata, "emq_scheduling_revision", "s0001", "emq.scheduling:migrations")


async def ensure(database: Database) -> None:
    """Create or upgrade the tables, if needed.

    Raises:
        InvalidSettings: a newer EMQ wrote the tables; upgrade this installation.
        DatabaseUnavailable: there is no connection; try again.
    """
    found = await database.run(lambda c: schemas.revision(c, SCHEDULING), read_only=True, deadline_s=QUICK_S)
    if found != SCHEDULING.head:
        await database.run(lambda c: schemas.ensure(c, SCHEDULING), deadline_s=LONG_S)

"""Sets up the push service's tables in the database of the catalog."""

from __future__ import annotations

from emq.database import Database, Schema
from emq.database import schema as schemas
from emq.database.database import LONG_S, QUICK_S
from emq_push.records import tables

PUSH = Schema(tables.metadata, "emq_push_revision", "first", "emq_push.records:migrations")


async def ensure(database: Database) -> None:
    """Create or upgrade the tables, if needed.

    Raises:
        InvalidSettings: a newer EMQ wrote the tables; upgrade this installation.
        DatabaseUnavailable: there is no connection; try again.
    """
    found = await database.run(lambda c: schemas.revision(c, PUSH), read_only=True, deadline_s=QUICK_S)
    if found != PUSH.head:
        await database.run(lambda c: schemas.ensure(c, PUSH), deadline_s=LONG_S)

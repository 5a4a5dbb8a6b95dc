"""Sets up the push service's tables in the database of the catalog."""

from __future__ import annotations

from emq.database import Database, Schema
from emq.database.database import set_up
from emq_push.records import tables

PUSH = Schema(tables.metadata, "emq_push_revision", "first", "emq_push.records:migrations")


async def ensure(database: Database) -> None:
    """Create or upgrade the tables, if needed.

    Raises:
        InvalidSettings: a newer EMQ wrote the tables; upgrade this installation.
        DatabaseUnavailable: there is no connection; try again.
    """
    await set_up(database, PUSH)

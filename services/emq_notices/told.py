"""The troubles that were told and have not ended, in the database: rows of `emq_meta`, `notice:<kind>:<subject>`."""

from __future__ import annotations

import sqlalchemy as sa

from emq.database import tables
from emq.database.database import Database
from emq_notices.judging import Key

_PREFIX = "notice:"
_meta = tables.meta


class Told:
    """See `opening.Open.told` for the values."""

    def __init__(self, database: Database, environment: str) -> None:
        self._database = database
        self._environment = environment

    async def load(self) -> dict[Key, int]:
        """Return all of them."""
        query = sa.select(_meta.c.key, _meta.c.value).where(
            _meta.c.environment == self._environment, _meta.c.key.startswith(_PREFIX, autoescape=True)
        )
        rows = await self._database.run(lambda c: c.execute(query).all(), read_only=True)
        found: dict[Key, int] = {}
        for key, value in rows:
            kind, _, subject = key.removeprefix(_PREFIX).partition(":")
            found[Key(kind, subject)] = value
        return found

    async def clear(self) -> None:
        """Forget all of them."""
        here = sa.and_(_meta.c.environment == self._environment, _meta.c.key.startswith(_PREFIX, autoescape=True))
        await self._database.run(lambda c: c.execute(sa.delete(_meta).where(here)))

    async def save(self, key: Key, value: int | None) -> None:
        """Keep a value; None to forget it. Safe to repeat."""
        name = f"{_PREFIX}{key.kind}:{key.subject}"
        here = sa.and_(_meta.c.environment == self._environment, _meta.c.key == name)

        def run(connection: sa.Connection) -> None:
            connection.execute(sa.delete(_meta).where(here))
            if value is not None:
                connection.execute(sa.insert(_meta).values(environment=self._environment, key=name, value=value))

        await self._database.run(run)

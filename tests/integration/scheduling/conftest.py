"""Databases for the tests of resource scheduling, each in an environment of its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from emq.database import Database
from emq_scheduling.database import schema, tables


@pytest.fixture
def environment() -> str:
    return f"scheduling-{os.getpid()}"


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path, environment: str) -> AsyncIterator[Database]:
    """A database of each kind; at the end the rows of the environment go."""
    url = f"sqlite:///{tmp_path}/emq.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    found = await Database.open(url)
    await schema.ensure(found)
    yield found

    def clear(connection: sa.Connection) -> None:
        for table in tables.metadata.sorted_tables:
            connection.execute(sa.delete(table).where(table.c.environment == environment))

    await found.run(clear)
    await found.close()

"""A set of tables with a migration that can be made to die in its middle; and processes that run the migration."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import sqlalchemy as sa

from emq.database import Database, Schema

NAME = "migrated_things"

_FIRST = """
revision = "first"
down_revision = None
"""

_SECOND = """
import os, pathlib
import sqlalchemy as sa
from alembic import op

revision = "second"
down_revision = "first"

def upgrade():
    here = pathlib.Path(__file__).parent
    op.add_column("migrated_things", sa.Column("more", sa.Text))
    op.execute("UPDATE migrated_things SET more = 'filled'")
    if (here / "die").exists():
        os._exit(9)
    op.create_table("migrated_others", sa.Column("id", sa.Integer, primary_key=True))
    with (here / "runs").open("a") as runs:
        runs.write("once,")
"""


def write(directory: Path) -> None:
    """Write the revisions."""
    (directory / "first.py").write_text(_FIRST)
    (directory / "second.py").write_text(_SECOND)


def schema(directory: Path, head: str) -> Schema:
    """Return the tables as of a revision, `first` or `second`."""
    metadata = sa.MetaData()
    table = sa.Table(NAME, metadata, sa.Column("id", sa.Integer, primary_key=True))
    if head == "second":
        table.append_column(sa.Column("more", sa.Text))
        sa.Table("migrated_others", metadata, sa.Column("id", sa.Integer, primary_key=True))
    return Schema(metadata, "migrated_revision", head, str(directory))


def processes(url: str, directory: Path, head: str, n: int) -> list[int]:
    """Have `n` processes open the database at one time; return their exit codes."""
    spawning = multiprocessing.get_context("spawn")
    barrier = spawning.Barrier(n)
    started = [spawning.Process(target=_open, args=(url, directory, head, barrier)) for _ in range(n)]
    for process in started:
        process.start()
    for process in started:
        process.join(300)
    return [process.exitcode if process.exitcode is not None else -1 for process in started]


def _open(url: str, directory: Path, head: str, barrier: Barrier) -> None:
    import asyncio

    import alembic.command  # noqa: F401  # so that the processes meet in the database, and not in their imports

    async def run() -> None:
        await (await Database.open(url, schema(directory, head))).close()

    barrier.wait(300)
    asyncio.run(run())

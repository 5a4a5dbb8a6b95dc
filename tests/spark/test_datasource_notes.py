"""The table of the data source's notes."""

from __future__ import annotations

from pathlib import Path

from emq_spark.source.notes import SCHEMA
from support import schemas


async def test_the_migrations_lead_to_the_table(tmp_path: Path) -> None:
    await schemas.check(SCHEMA, tmp_path)

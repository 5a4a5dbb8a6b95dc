"""A table that was changed without a revision is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from emq.database import CATALOG, Schema
from support import schemas


def copy_of(tables: Schema) -> Schema:
    metadata = sa.MetaData()
    for table in tables.metadata.tables.values():
        table.to_metadata(metadata)
    return tables._replace(metadata=metadata)


@pytest.mark.parametrize("change", ["column", "index", "table"])
def test_what_was_added_is_told_in_one_line(tmp_path: Path, change: str) -> None:
    tables = copy_of(CATALOG)
    meta = tables.metadata.tables["emq_meta"]
    if change == "column":
        meta.append_column(sa.Column("more", sa.Text))
    elif change == "index":
        sa.Index("emq_meta_more", meta.c.value)
    else:
        sa.Table("emq_more", tables.metadata, sa.Column("id", sa.BigInteger, primary_key=True))
    found = schemas.difference(tables, tmp_path / "emq.db")
    assert "emq.database:migrations/versions" in found
    assert "add a revision" in found
    assert "\n" not in found


def test_a_revision_that_forgets_a_column_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "first.sql").write_text(schemas.statements(CATALOG))
    (tmp_path / "first.py").write_text('revision = "first"\ndown_revision = None\n')
    (tmp_path / "second.py").write_text(
        'from alembic import op\nimport sqlalchemy as sa\nrevision = "second"\ndown_revision = "first"\n'
        'def upgrade():\n    op.add_column("emq_meta", sa.Column("one", sa.Text))\n'
    )
    tables = copy_of(CATALOG)._replace(head="second", migrations=str(tmp_path))
    tables.metadata.tables["emq_meta"].append_column(sa.Column("one", sa.Text))
    assert schemas.difference(tables, tmp_path / "one.db") == ""
    tables.metadata.tables["emq_meta"].append_column(sa.Column("two", sa.Text))
    assert "add_column" in schemas.difference(tables, tmp_path / "two.db")

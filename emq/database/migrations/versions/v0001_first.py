"""Topics, counters, checkpoints, host snapshots."""

import sqlalchemy as sa
from alembic import op

revision = "v0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "emq_topics",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("body", sa.Text, nullable=False, comment="the topic as JSON; empty in a tombstone"),
        sa.Column("version", sa.BigInteger, nullable=False, comment="catalog version at which the row last changed"),
        sa.Column("live", sa.Integer, nullable=False, comment="0 marks a tombstone"),
        sa.Column("deleted_at", sa.BigInteger, nullable=False, comment="catalog version of its last deletion, or 0"),
        sqlite_with_rowid=False,
    )
    op.create_index("emq_topics_version", "emq_topics", ["environment", "version"])
    op.create_table(
        "emq_meta",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "emq_checkpoints",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("queue", sa.Text, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("watermark", sa.BigInteger, nullable=False),
        sa.Column("finished", sa.Text, nullable=False, comment="JSON [[start, end], ...], half open"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "emq_host_stats",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("host", sa.Text, primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    for table in ("emq_host_stats", "emq_checkpoints", "emq_meta", "emq_topics"):
        op.drop_table(table)

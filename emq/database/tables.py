"""Tables of the catalog and offsets database. A change here needs a migration of the same effect."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

topics = sa.Table(
    "emq_topics",
    metadata,
    sa.Column("environment", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("body", sa.Text, nullable=False, comment="the topic as JSON; empty in a tombstone"),
    sa.Column("version", sa.BigInteger, nullable=False, comment="catalog version at which the row last changed"),
    sa.Column("live", sa.Integer, nullable=False, comment="0 marks a tombstone"),
    sa.Column("deleted_at", sa.BigInteger, nullable=False, comment="catalog version of its last deletion, or 0"),
    sa.Index("emq_topics_version", "environment", "version"),
    sqlite_with_rowid=False,
)

meta = sa.Table(
    "emq_meta",
    metadata,
    sa.Column("environment", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

checkpoints = sa.Table(
    "emq_checkpoints",
    metadata,
    sa.Column("environment", sa.Text, primary_key=True),
    sa.Column("queue", sa.Text, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("watermark", sa.BigInteger, nullable=False),
    sa.Column("finished", sa.Text, nullable=False, comment="JSON [[start, end], ...], half open"),
    sqlite_with_rowid=False,
)

host_stats = sa.Table(
    "emq_host_stats",
    metadata,
    sa.Column("environment", sa.Text, primary_key=True),
    sa.Column("host", sa.Text, primary_key=True),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("updated_ms", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

"""Tables of the catalog and offsets database. A change here needs a migration of the same effect."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

# Names that begin alike are a range of the key, so every database must sort them as Python does.
_Name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

TOMBSTONE, AWAKE, ASLEEP = 0, 1, 2
"""Values of the column `live` of topics."""

topics = sa.Table(
    "emq_topics",
    metadata,
    sa.Column("environment", sa.Text, primary_key=True),
    sa.Column("name", _Name, primary_key=True),
    sa.Column("body", sa.Text, nullable=False, comment="the topic as JSON; empty in a tombstone"),
    sa.Column("version", sa.BigInteger, nullable=False, comment="catalog version at which the row last changed"),
    sa.Column("live", sa.Integer, nullable=False, comment="TOMBSTONE, AWAKE or ASLEEP"),
    sa.Column("deleted_at", sa.BigInteger, nullable=False, comment="version at which it last ended or slept, or 0"),
    sa.Index("emq_topics_version", "environment", "version"),
    sa.Index("emq_topics_live", "environment", "live", "version"),
    sqlite_with_rowid=False,
)

families = sa.Table(
    "emq_families",
    metadata,
    sa.Column("environment", sa.Text, primary_key=True),
    sa.Column("name", _Name, primary_key=True, comment="a prefix and a star"),
    sa.Column("body", sa.Text, nullable=False, comment="the family as JSON"),
    sa.Column("live", sa.BigInteger, nullable=False, comment="number of its topics that are awake"),
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
    sa.Column("environment", sa.Text, primary_key=True, comment="with the store, see emq.database.known_stores"),
    sa.Column("queue", sa.Text, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("watermark", sa.BigInteger, nullable=False),
    sa.Column("finished", sa.Text, nullable=False, comment="JSON [[start, end], ...], half open"),
    sa.Column("marks", sa.Text, nullable=False, server_default="[]", comment="JSON [[offset, digest], ...]"),
    sa.Column("notes", sa.Text, nullable=False, server_default="[]", comment="JSON [[seconds, watermark], ...]"),
    sqlite_with_rowid=False,
)

passages = sa.Table(
    "emq_passages",
    metadata,
    sa.Column("environment", sa.Text, primary_key=True, comment="as of the checkpoints"),
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("group_index", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("layout", sa.BigInteger, primary_key=True, autoincrement=False, comment="an earlier one"),
    sa.Column("tails", sa.Text, nullable=False, comment="JSON, by priority: behind its last message"),
    sa.Column("passed", sa.Integer, nullable=False, comment="1: nothing of that layout is left in the group"),
    sqlite_with_rowid=False,
)

stores = sa.Table(
    "emq_stores",
    metadata,
    sa.Column("environment", sa.Text, primary_key=True),
    sa.Column("identity", sa.Text, primary_key=True),
    sa.Column("scope", sa.Text, nullable=False, comment="environment of its rows in other tables"),
    sa.Column("place", sa.Text, nullable=False, comment="its URL without the password"),
    sa.Column("number", sa.BigInteger, nullable=False, comment="the highest is the store of the last host"),
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

tree_nodes = sa.Table(
    "emq_tree_nodes",
    metadata,
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("parent", sa.Text, nullable=False, comment="path of the node above"),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False, comment="counts the writes, from 0"),
    sa.Column("session", sa.BigInteger, nullable=False, comment="that the node lives with, or 0"),
    sa.Column("written_ms", sa.BigInteger, nullable=False, comment="by the clock of the database"),
    sa.Column("changed", sa.BigInteger, nullable=False, comment="number of the change that wrote it last"),
    sa.Column("children_changed", sa.BigInteger, nullable=False, comment="the same for a child that came or went"),
    sa.Column("numbers", sa.BigInteger, nullable=False, comment="children with a number that were made below it"),
    sa.Index("emq_tree_nodes_parent", "parent"),
    sa.Index("emq_tree_nodes_session", "session"),
    sqlite_with_rowid=False,
)

tree_sessions = sa.Table(
    "emq_tree_sessions",
    metadata,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("beat", sa.BigInteger, nullable=False, comment="number of the change by which it was last heard of"),
    sa.Column("timeout_ms", sa.BigInteger, nullable=False, comment="after so much silence it ends"),
    sa.Column("process", sa.Text, nullable=False, comment="machine, process id and start of who has it, or empty"),
    sqlite_with_rowid=False,
)

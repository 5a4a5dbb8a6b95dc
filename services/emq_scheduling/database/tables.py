"""Tables of resource scheduling. A change here needs a migration of the same effect. Times are microseconds since the
epoch.

They lie in the database of the catalog, beside its tables.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()


def _table(name: str, *columns: sa.schema.SchemaItem) -> sa.Table:
    """Return a table whose rows belong to a pool of an environment."""
    keys = [sa.Column(key, sa.Text, primary_key=True) for key in ("environment", "pool")]
    return sa.Table(name, metadata, *keys, *columns, sqlite_with_rowid=False)


pools = _table(
    "emq_scheduling_pools",
    sa.Column("body", sa.Text, nullable=False, comment="the pool as JSON"),
    sa.Column("version", sa.BigInteger, nullable=False, comment="grows with each change, also after a deletion"),
    sa.Column("changed_us", sa.BigInteger, nullable=False),
)

versions = _table(
    "emq_scheduling_versions",
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False, comment="the pool as JSON; empty if that version is its deletion"),
    sa.Column("changed_us", sa.BigInteger, nullable=False),
)

tasks = _table(
    "emq_scheduling_tasks",
    # When the task ended if it never started.
    sa.Column("started_us", sa.BigInteger, primary_key=True, autoincrement=False, comment="of the attempt"),
    sa.Column("task", sa.Text, primary_key=True, comment="its id"),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False, comment="from 1; 0 if it never started"),
    sa.Column("resource", sa.Text, primary_key=True, comment="empty if the task never started"),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False, comment="empty for none"),
    sa.Column("key", sa.Text, nullable=False, comment="empty for none"),
    sa.Column("submitted_us", sa.BigInteger, nullable=False),
    sa.Column("deadline_us", sa.BigInteger, nullable=False, comment="0: none"),
    sa.Column("ended_us", sa.BigInteger, nullable=False, comment="0 while the attempt runs"),
    sa.Column("outcome", sa.Text, nullable=False, comment="see emq_scheduling.records.ends"),
    sa.Column("version", sa.BigInteger, nullable=False, comment="of the pool by which the attempt was charged"),
    sa.Column("costs", sa.Text, nullable=False, comment="JSON: units charged at the start, by limit name"),
    sa.Column("actual", sa.Text, nullable=False, comment="JSON: units really used; empty if as charged"),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("result", sa.LargeBinary, nullable=False, comment="its beginning"),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("keys", sa.Text, nullable=False, comment="JSON: by name, for limits by key; empty for none"),
    sa.Column("as_type", sa.Text, nullable=False, comment="as which a task with fallbacks ran; empty for its own"),
    sa.Index("emq_scheduling_tasks_task", "environment", "pool", "task"),
)

cancels = _table(
    "emq_scheduling_cancels",
    sa.Column("task", sa.Text, primary_key=True),
    sa.Column("asked_us", sa.BigInteger, nullable=False),
    sa.Index("emq_scheduling_cancels_asked", "environment", "pool", "asked_us"),
)

progress = _table(
    "emq_scheduling_progress",
    sa.Column("task", sa.Text, primary_key=True, comment="its id; a row only until it has ended"),
    sa.Column("type", sa.Text, primary_key=True, comment="as which it was submitted"),
    sa.Column("tenant", sa.Text, primary_key=True, comment="empty for none"),
    sa.Column("submitted_us", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("started_us", sa.BigInteger, nullable=False, comment="of the attempt that told it"),
    sa.Column("told_us", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False, comment="JSON: how far the task came"),
)

snapshots = _table(
    "emq_scheduling_snapshots",
    sa.Column("body", sa.Text, nullable=False, comment="JSON, see emq_scheduling.records.snapshot"),
    sa.Column("at_us", sa.BigInteger, nullable=False),
)

usage = _table(
    "emq_scheduling_usage",
    sa.Column("resource", sa.Text, primary_key=True, comment="or a key; empty in the row that names the owner"),
    sa.Column("body", sa.Text, nullable=False, comment="JSON, see emq_scheduling.limits.usage; or the owner"),
    sa.Column("number", sa.BigInteger, nullable=False, comment="of the owner's latest save, in its row; else 0"),
)

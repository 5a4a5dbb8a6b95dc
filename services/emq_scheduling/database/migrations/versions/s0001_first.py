"""Pools, their versions, records of tasks, cancels, snapshots, usage."""

import sqlalchemy as sa
from alembic import op

revision = "s0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "emq_scheduling_pools",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("body", sa.Text, nullable=False, comment="the pool as JSON"),
        sa.Column("version", sa.BigInteger, nullable=False, comment="grows with each change, also after a deletion"),
        sa.Column("changed_us", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "emq_scheduling_versions",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("body", sa.Text, nullable=False, comment="the pool as JSON; empty if that version is its deletion"),
        sa.Column("changed_us", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "emq_scheduling_tasks",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column(
            "started_us",
            sa.BigInteger,
            primary_key=True,
            autoincrement=False,
            comment="of the attempt; when the task ended if it never started",
        ),
        sa.Column("task", sa.Text, primary_key=True, comment="its id"),
        sa.Column(
            "attempt",
            sa.Integer,
            primary_key=True,
            autoincrement=False,
            comment="from 1; 0 if the task never started",
        ),
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
        sqlite_with_rowid=False,
    )
    op.create_table(
        "emq_scheduling_cancels",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("task", sa.Text, primary_key=True),
        sa.Column("asked_us", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "emq_scheduling_snapshots",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("body", sa.Text, nullable=False, comment="JSON, see emq_scheduling.records.snapshot"),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "emq_scheduling_usage",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("pool", sa.Text, primary_key=True),
        sa.Column("resource", sa.Text, primary_key=True, comment="empty in the row that names the owner"),
        sa.Column("body", sa.Text, nullable=False, comment="JSON, see emq_scheduling.limits.usage; or the owner"),
        sa.Column("number", sa.BigInteger, nullable=False, comment="of the owner's latest save, in its row; else 0"),
        sqlite_with_rowid=False,
    )
    op.create_index("emq_scheduling_tasks_task", "emq_scheduling_tasks", ["environment", "pool", "task"])
    op.create_index("emq_scheduling_cancels_asked", "emq_scheduling_cancels", ["environment", "pool", "asked_us"])


def downgrade() -> None:
    op.drop_table("emq_scheduling_pools")
    op.drop_table("emq_scheduling_versions")
    op.drop_table("emq_scheduling_tasks")
    op.drop_table("emq_scheduling_cancels")
    op.drop_table("emq_scheduling_snapshots")
    op.drop_table("emq_scheduling_usage")

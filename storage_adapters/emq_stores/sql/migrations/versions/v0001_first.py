"""Groups, queues, messages, sorted entries, wake-ups."""

import sqlalchemy as sa
from alembic import op

revision = "v0001"
down_revision = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_PLAIN = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "store_groups",
        sa.Column("id", _ID, sa.Identity(), primary_key=True),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("armed", sa.Text),
        sa.Column("armed_due_ms", sa.BigInteger),
        sa.UniqueConstraint("environment", "name", name="store_groups_name"),
    )
    op.create_table(
        "store_queues",
        sa.Column("id", _ID, sa.Identity(), primary_key=True),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("group_id", sa.BigInteger, nullable=False),
        sa.Column("head", sa.BigInteger, nullable=False, server_default="1"),
        sa.Column("tail", sa.BigInteger, nullable=False, server_default="1"),
        sa.Column("sealed", sa.Integer, nullable=False, server_default="0"),
        sa.Column("armed", sa.Text),
        sa.Column("armed_epoch", sa.BigInteger, nullable=False, server_default="0"),
        sa.UniqueConstraint("environment", "name", name="store_queues_name"),
    )
    op.create_table(
        "store_messages",
        sa.Column("queue_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("msg_offset", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "store_entries",
        sa.Column("slot_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", _PLAIN, primary_key=True),
        sa.Column("state", sa.Integer, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("due_ms", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("store_entries_order", "store_entries", ["slot_id", "state", "at_ms", "id"])
    op.create_table(
        "store_woken",
        sa.Column("instance", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    for table in ("store_woken", "store_entries", "store_messages", "store_queues", "store_groups"):
        op.drop_table(table)

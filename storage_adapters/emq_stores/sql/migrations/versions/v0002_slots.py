"""Adds the members of sorted topics' slots. Ranks arm lanes and slots now; a priority's rank may be a fraction."""

import sqlalchemy as sa
from alembic import op

revision = "v0002"
down_revision = "v0001"

_PLAIN = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("store_groups", sa.Column("armed_rank", sa.Double))
    op.add_column("store_groups", sa.Column("fold", sa.Text))
    op.add_column("store_groups", sa.Column("waiting", sa.BigInteger, nullable=False, server_default="0"))
    op.execute("UPDATE store_groups SET armed_rank = armed_due_ms")
    op.drop_column("store_groups", "armed_due_ms")
    op.create_table(
        "store_members",
        sa.Column("slot_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", _PLAIN, primary_key=True),
        sa.Column("state", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("rank", sa.Double, nullable=False),
        sa.Column("member", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary),
        sa.Column("note", sa.LargeBinary),
        sa.Column("merged", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("history", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("store_members_order", "store_members", ["slot_id", "state", "rank", "id"])


def downgrade() -> None:
    op.drop_table("store_members")
    # No lane or slot is armed afterwards: hosts look at everything when they start.
    op.add_column("store_groups", sa.Column("armed_due_ms", sa.BigInteger))
    op.drop_column("store_groups", "armed_rank")
    op.drop_column("store_groups", "fold")
    op.drop_column("store_groups", "waiting")
    op.execute("UPDATE store_groups SET armed = NULL")

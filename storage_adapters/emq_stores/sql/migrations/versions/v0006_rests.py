"""Prepared members of slots may rest until the time of their next attempt."""

import sqlalchemy as sa
from alembic import op

revision = "v0006"
down_revision = "v0005"


def upgrade() -> None:
    op.create_table(
        "store_rests",
        sa.Column("slot_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text().with_variant(sa.Text(collation="C"), "postgresql"), primary_key=True),
        sa.Column("rest_ms", sa.BigInteger, nullable=False),
        sa.Column("rank", sa.Double, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("store_rests_order", "store_rests", ["slot_id", "rest_ms", "id"])


def downgrade() -> None:
    op.drop_table("store_rests")

"""A table of passages: the groups that have passed a layout of their topic."""

import sqlalchemy as sa
from alembic import op

revision = "v0005"
down_revision = "v0004"


def upgrade() -> None:
    op.create_table(
        "emq_passages",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("topic", sa.Text, primary_key=True),
        sa.Column("group_index", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("layout", sa.BigInteger, primary_key=True, autoincrement=False, comment="an earlier one"),
        sa.Column("tails", sa.Text, nullable=False, comment="JSON, by priority: behind its last message"),
        sa.Column("passed", sa.Integer, nullable=False, comment="1: nothing of that layout is left in the group"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("emq_passages")

"""The coordination tree of hosts that share a database."""

import sqlalchemy as sa
from alembic import op

revision = "v0002"
down_revision = "v0001"


def upgrade() -> None:
    op.create_table(
        "emq_tree_nodes",
        sa.Column("path", sa.Text, primary_key=True),
        sa.Column("parent", sa.Text, nullable=False, comment="path of the node above"),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, comment="counts the writes, from 0"),
        sa.Column("session", sa.BigInteger, nullable=False, comment="that the node lives with, or 0"),
        sa.Column("written_ms", sa.BigInteger, nullable=False, comment="by the clock of the database"),
        sa.Column("changed", sa.BigInteger, nullable=False, comment="number of the change that wrote it last"),
        sa.Column("children_changed", sa.BigInteger, nullable=False, comment="the same for a child that came or went"),
        sa.Column("numbers", sa.BigInteger, nullable=False, comment="children with a number that were made below it"),
        sqlite_with_rowid=False,
    )
    op.create_index("emq_tree_nodes_parent", "emq_tree_nodes", ["parent"])
    op.create_index("emq_tree_nodes_session", "emq_tree_nodes", ["session"])
    op.create_table(
        "emq_tree_sessions",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("beat", sa.BigInteger, nullable=False, comment="number of the change by which it was last heard of"),
        sa.Column("timeout_ms", sa.BigInteger, nullable=False, comment="after so much silence it ends"),
        sa.Column("process", sa.Text, nullable=False, comment="machine, process id and start of who has it, or empty"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    for table in ("emq_tree_sessions", "emq_tree_nodes"):
        op.drop_table(table)

"""Which stores the progress in the database belongs to."""

import sqlalchemy as sa
from alembic import op

revision = "v0006"
down_revision = "v0005"


def upgrade() -> None:
    op.create_table(
        "emq_stores",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("identity", sa.Text, primary_key=True),
        sa.Column("scope", sa.Text, nullable=False, comment="environment of its rows in other tables"),
        sa.Column("place", sa.Text, nullable=False, comment="its URL without the password"),
        sa.Column("number", sa.BigInteger, nullable=False, comment="the highest is the store of the last host"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("emq_stores")

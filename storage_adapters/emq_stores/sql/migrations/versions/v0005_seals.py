"""Lanes and slots can be sealed, as queues can."""

import sqlalchemy as sa
from alembic import op

revision = "v0005"
down_revision = "v0004"


def upgrade() -> None:
    op.add_column("store_groups", sa.Column("sealed", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("store_groups", "sealed")

"""A queue refuses keyed messages that were routed by an older layout of their topic."""

import sqlalchemy as sa
from alembic import op

revision = "v0004"
down_revision = "v0003"


def upgrade() -> None:
    op.add_column("store_queues", sa.Column("layout", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("store_queues", "layout")

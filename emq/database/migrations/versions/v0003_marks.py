"""Checkpoints know messages of their queues, so that a store that comes back shorter is noticed."""

import sqlalchemy as sa
from alembic import op

revision = "v0003"
down_revision = "v0002"


def upgrade() -> None:
    op.add_column("emq_checkpoints", sa.Column("marks", sa.Text, nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("emq_checkpoints", "marks")

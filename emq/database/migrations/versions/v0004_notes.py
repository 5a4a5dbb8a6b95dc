"""Checkpoints know when queues had come how far, so that retention outlives restarts."""

import sqlalchemy as sa
from alembic import op

revision = "v0004"
down_revision = "v0003"


def upgrade() -> None:
    op.add_column("emq_checkpoints", sa.Column("notes", sa.Text, nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("emq_checkpoints", "notes")

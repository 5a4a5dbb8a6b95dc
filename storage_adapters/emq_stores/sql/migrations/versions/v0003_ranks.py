"""Due entries of a lane are claimed by priority; entries from before this revision have the highest priority."""

import sqlalchemy as sa
from alembic import op

revision = "v0003"
down_revision = "v0002"


def upgrade() -> None:
    op.add_column("store_entries", sa.Column("priority", sa.Integer, nullable=False, server_default="0"))
    op.create_index("store_entries_ranks", "store_entries", ["slot_id", "state", "priority", "at_ms", "id"])


def downgrade() -> None:
    op.drop_index("store_entries_ranks", "store_entries")
    op.drop_column("store_entries", "priority")

"""What is due in a lane is claimed by priority; what waited there before counts as of the highest."""

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

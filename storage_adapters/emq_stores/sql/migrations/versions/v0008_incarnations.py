"""Queues have incarnations."""

import sqlalchemy as sa
from alembic import op

revision = "v0008"
down_revision = "v0007"

RANDOM = {"sqlite": "1 + (random() & 2147483647)", "postgresql": "1 + floor(random() * 2147483648)::bigint"}


def upgrade() -> None:
    op.add_column("store_queues", sa.Column("incarnation", sa.BigInteger, nullable=False, server_default="0"))
    op.execute(f"UPDATE store_queues SET incarnation = {RANDOM[op.get_bind().dialect.name]}")


def downgrade() -> None:
    op.drop_column("store_queues", "incarnation")

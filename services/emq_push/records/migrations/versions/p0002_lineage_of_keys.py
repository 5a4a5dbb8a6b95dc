"""Keys know which key made them, and sessions of browsers are no keys. Ends the sessions that were keys until now."""

import sqlalchemy as sa
from alembic import op

revision = "p0002"
down_revision = "p0001"


def upgrade() -> None:
    parent = sa.Column(
        "parent", sa.Text, nullable=False, server_default="", comment="id of the key that made it; or empty"
    )
    op.add_column("emq_push_keys", parent)
    kind = sa.Column("kind", sa.Text, nullable=False, server_default="key", comment="key, or session: a browser's")
    op.add_column("emq_push_keys", kind)
    op.create_index("emq_push_keys_parent", "emq_push_keys", ["environment", "parent"])
    op.execute("DELETE FROM emq_push_keys WHERE name LIKE 'signed in with %'")


def downgrade() -> None:
    op.drop_index("emq_push_keys_parent", "emq_push_keys")
    op.drop_column("emq_push_keys", "kind")
    op.drop_column("emq_push_keys", "parent")

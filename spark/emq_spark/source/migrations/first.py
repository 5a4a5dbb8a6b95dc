"""The tables of the first release: a database gets them when it is made, see `emq.database.schema`."""

revision = "first"
down_revision = None


def upgrade() -> None:
    """Change nothing: no database is without these tables."""

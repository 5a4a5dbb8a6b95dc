"""Runs the migrations on the connection, and in the transaction, that `emq.database.schema` hands over."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
)
context.run_migrations()

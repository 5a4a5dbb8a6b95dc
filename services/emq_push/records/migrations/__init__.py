"""Migrations of the push service's tables, run by `emq.database.schema`."""

"""Migrations of the SQL store's tables, run by `emq.database.schema`."""

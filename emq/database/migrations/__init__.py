"""Migrations of the catalog and offsets tables, run by `emq.database.schema`."""

"""Migrations of the tables of resource scheduling, run by `emq.database.schema`."""

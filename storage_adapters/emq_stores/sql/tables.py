"""Tables of the SQL store. A change here needs a migration of the same effect."""

from __future__ import annotations

import sqlalchemy as sa

from emq.database import Schema

metadata = sa.MetaData()

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
# Pages of dead letters are in the order of ids, so every database must sort strings as Python does.
_Plain = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")

groups = sa.Table(
    "store_groups",
    metadata,
    sa.Column("id", _Id, sa.Identity(), primary_key=True),
    sa.Column("environment", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column(
        "epoch", sa.BigInteger, nullable=False, server_default="0", comment="highest seen; lower ones are refused"
    ),
    sa.Column("armed", sa.Text, comment="store instance to wake for what ranks earlier"),
    sa.Column("armed_rank", sa.Double, comment="wake for what ranks before this; of a lane: due time in ms"),
    sa.Column("fold", sa.Text, comment="of a slot: that of its last add, as JSON; NULL for latest"),
    sa.Column("waiting", sa.BigInteger, nullable=False, server_default="0", comment="of a slot: how many wait"),
    sa.Column("sealed", sa.Integer, nullable=False, server_default="0", comment="1: producers' adds are refused"),
    sa.UniqueConstraint("environment", "name", name="store_groups_name"),
)

queues = sa.Table(
    "store_queues",
    metadata,
    sa.Column("id", _Id, sa.Identity(), primary_key=True),
    sa.Column("environment", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("group_id", sa.BigInteger, nullable=False),
    sa.Column("head", sa.BigInteger, nullable=False, server_default="1", comment="first offset not trimmed"),
    sa.Column("tail", sa.BigInteger, nullable=False, server_default="1", comment="next offset to be assigned"),
    sa.Column("sealed", sa.Integer, nullable=False, server_default="0"),
    sa.Column(
        "layout", sa.BigInteger, nullable=False, server_default="0", comment="keyed puts of lower ones are refused"
    ),
    sa.Column("incarnation", sa.BigInteger, nullable=False, server_default="0", comment="random; given with the row"),
    sa.Column("armed", sa.Text, comment="store instance to wake at the next put"),
    sa.Column("armed_epoch", sa.BigInteger, nullable=False, server_default="0", comment="a stale owner cannot re-arm"),
    sa.UniqueConstraint("environment", "name", name="store_queues_name"),
)

messages = sa.Table(
    "store_messages",
    metadata,
    sa.Column("queue_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("msg_offset", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)

entries = sa.Table(
    "store_entries",
    metadata,
    sa.Column(
        "slot_id", sa.BigInteger, primary_key=True, autoincrement=False, comment="the slot's row in store_groups"
    ),
    sa.Column("id", _Plain, primary_key=True),
    sa.Column("state", sa.Integer, nullable=False, comment="0 waiting, 1 prepared, 2 dead, 3 taken for good"),
    sa.Column(
        "at_ms",
        sa.BigInteger,
        nullable=False,
        comment="due, claimed, or dead since, by state; of the taken their order",
    ),
    sa.Column("due_ms", sa.BigInteger, nullable=False, comment="of the taken: when; 0: see at_ms"),
    sa.Column("priority", sa.Integer, nullable=False, server_default="0", comment="0 is the highest"),
    sa.Column("epoch", sa.BigInteger, nullable=False, comment="under which it was claimed"),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Index("store_entries_order", "slot_id", "state", "at_ms", "id"),
    sa.Index("store_entries_ranks", "slot_id", "state", "priority", "at_ms", "id"),
    sqlite_with_rowid=False,
)

members = sa.Table(
    "store_members",
    metadata,
    sa.Column(
        "slot_id", sa.BigInteger, primary_key=True, autoincrement=False, comment="the slot's row in store_groups"
    ),
    sa.Column("id", _Plain, primary_key=True, comment="digest of the member, which may be too long for an index"),
    # A member may wait, be prepared and be dead at once: a member that is added again is a message of its own.
    sa.Column("state", sa.Integer, primary_key=True, autoincrement=False, comment="0 waiting, 1 prepared, 2 dead"),
    sa.Column(
        "rank", sa.Double, nullable=False, comment="claim order (the score, or minus a priority); token; ms of death"
    ),
    sa.Column("member", sa.LargeBinary, nullable=False),
    sa.Column("body", sa.LargeBinary, comment="only of slots with bodies apart"),
    sa.Column("note", sa.LargeBinary, comment="only of slots with bodies apart"),
    sa.Column("merged", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.Text, nullable=False, comment="why it is dead; else its fewest retries left, if any"),
    sa.Column("history", sa.Text, nullable=False, comment="failed attempts, JSON [[ms, reason], ...]; empty for none"),
    sa.Index("store_members_order", "slot_id", "state", "rank", "id"),
    sqlite_with_rowid=False,
)

rests = sa.Table(
    "store_rests",
    metadata,
    sa.Column("slot_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("id", _Plain, primary_key=True, comment="digest of a prepared member that rests"),
    sa.Column("rest_ms", sa.BigInteger, nullable=False, comment="end of its rest"),
    sa.Column("rank", sa.Double, nullable=False, comment="with which it waits again after that"),
    sa.Index("store_rests_order", "slot_id", "rest_ms", "id"),
    sqlite_with_rowid=False,
)

ids = sa.Table(
    "store_ids",
    metadata,
    sa.Column("group_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("id", _Plain, primary_key=True, comment="of a publish that the group remembers"),
    sa.Column("until_ms", sa.BigInteger, nullable=False),
    sa.Index("store_ids_order", "group_id", "until_ms", "id"),
    sqlite_with_rowid=False,
)

woken = sa.Table(
    "store_woken",
    metadata,
    sa.Column("instance", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

STORE = Schema(metadata, "emq_store_revision", "first", "emq_stores.sql:migrations")

"""Tables of the push service. A change here needs a migration of the same effect.

Times are microseconds since the epoch. Ids begin with their kind (`msg_`, `ep_`, `key_`, `rpl_`) and sort by the time
of their making. A tenant's id is the caller's own.

A tenant is a topic of its name: the budget that its endpoints share. Each endpoint is a topic, named
`<tenant>.<endpoint>`, so that a slow endpoint holds up its own messages only. A message to three endpoints is three
deliveries: one message of the same id in each endpoint's topic.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

# Texts that are found by how they begin: a range of an index, so every database must sort them as Python does.
_Begun = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _table(name: str, *columns: sa.schema.SchemaItem, rowid: bool = False) -> sa.Table:
    """Return a table whose rows belong to an environment.

    Args:
        rowid: SQLite numbers its rows, as fits long rows and those that are written in any order.
    """
    environment = sa.Column("environment", sa.Text, primary_key=True)
    return sa.Table(name, metadata, environment, *columns, sqlite_with_rowid=rowid)


tenants = _table(
    "emq_push_tenants",
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("body", sa.Text, nullable=False, comment="the tenant as JSON"),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("changed_us", sa.BigInteger, nullable=False),
)

endpoints = _table(
    "emq_push_endpoints",
    sa.Column("topic", sa.Text, primary_key=True, comment="the endpoint's topic, <tenant>.<endpoint>"),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("endpoint", sa.Text, nullable=False, comment="its id, such as ep_..."),
    sa.Column("body", sa.Text, nullable=False, comment="the endpoint as JSON, without secrets"),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("changed_us", sa.BigInteger, nullable=False),
    sa.Column("log_end", sa.BigInteger, nullable=False, server_default="0", comment="last number in emq_push_log"),
    sa.Index("emq_push_endpoints_tenant", "environment", "tenant", "endpoint"),
)

log = _table(
    "emq_push_log",
    sa.Column("topic", sa.Text, primary_key=True, comment="of a polling endpoint"),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False, comment="from 1; some are left out"),
    sa.Column("message", sa.Text, nullable=False, comment="which waits until the consumer acknowledges it"),
    sa.Column("placed_us", sa.BigInteger, nullable=False),
    sa.Index("emq_push_log_message", "environment", "topic", "message", unique=True),
)

messages = _table(
    "emq_push_messages",
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("message", sa.Text, primary_key=True, comment="its id: the caller's own, or msg_..."),
    sa.Column("event_type", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=True, comment="messages of one key are delivered in order"),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("expires_us", sa.BigInteger, nullable=False, comment="when the row may be deleted"),
    sa.Column("payload", sa.LargeBinary, nullable=True, comment="null once it was erased"),
    sa.Column("body", sa.Text, nullable=False, comment="the rest as JSON: content type, key, priority, tags"),
    sa.Index("emq_push_messages_created", "environment", "tenant", "created_us", "message"),
    sa.Index("emq_push_messages_expires", "environment", "expires_us"),
    sa.Index(
        "emq_push_messages_key",
        *("environment", "tenant", "key", "created_us", "message"),
        sqlite_where=sa.text("key IS NOT NULL"),
        postgresql_where=sa.text("key IS NOT NULL"),
    ),
    rowid=True,
)

deliveries = _table(
    "emq_push_deliveries",
    sa.Column("topic", sa.Text, primary_key=True, comment="the endpoint's topic"),
    sa.Column("message", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False, comment="pending, delivered, dead or cancelled"),
    sa.Column("attempts", sa.Integer, nullable=False, comment="attempts made"),
    sa.Column("status", sa.Integer, nullable=False, comment="of the last answer; 0 without one"),
    sa.Column("reason", sa.Text, nullable=False, comment="why the last attempt failed"),
    sa.Column("next_us", sa.BigInteger, nullable=False, comment="when it is due again; 0 if it is due"),
    sa.Column("settled_us", sa.BigInteger, nullable=False, comment="when it was delivered or died, else 0"),
    sa.Index("emq_push_deliveries_created", "environment", "tenant", "created_us", "topic", "message"),
    sa.Index("emq_push_deliveries_state", "environment", "tenant", "state", "created_us", "topic", "message"),
    sa.Index("emq_push_deliveries_endpoint", "environment", "topic", "state", "created_us", "message"),
    sa.Index("emq_push_deliveries_message", "environment", "tenant", "message"),
    rowid=True,
)

attempts = _table(
    "emq_push_attempts",
    # Before the topic, since ids sort by time: what hosts write together lies together.
    sa.Column("message", sa.Text, primary_key=True),
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("started_us", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("number", sa.Integer, nullable=False, comment="of the attempt, from 1"),
    sa.Column("took_us", sa.BigInteger, nullable=False),
    sa.Column("status", sa.Integer, nullable=False, comment="of the answer; 0 without one"),
    sa.Column("outcome", sa.Text, nullable=False, comment="delivered, retry, parked or dead"),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("answer", sa.Text, nullable=False, comment="its beginning, masked"),
    sa.Column("host", sa.Text, nullable=False, comment="the EMQ host that made the attempt"),
    sa.Index("emq_push_attempts_started", "environment", "started_us"),
    sa.Index("emq_push_attempts_endpoint", "environment", "topic", "started_us", "message"),
    rowid=True,
)

idempotency = _table(
    "emq_push_idempotency",
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True, comment="the caller's Idempotency-Key; or its key's id, a space, it"),
    sa.Column("digest", sa.Text, nullable=False, comment="of the request's path and body"),
    sa.Column("answer", sa.Text, nullable=False, comment="JSON, or encrypted; empty while the request is under way"),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Index("emq_push_idempotency_created", "environment", "created_us"),
    rowid=True,
)

unsent = _table(
    "emq_push_unsent",
    sa.Column("id", sa.Text, primary_key=True, comment="of a batch of messages that were accepted together"),
    sa.Column("claimed_us", sa.BigInteger, nullable=False, comment="when a process last began to send them; 0: free"),
    sa.Column("body", sa.Text, nullable=False, comment="JSON: the ids of the messages by tenant"),
    rowid=True,
)

keys = _table(
    "emq_push_keys",
    sa.Column("digest", sa.Text, primary_key=True, comment="SHA-256 of the key"),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False, comment="admin, or for one tenant: read, send, manage"),
    sa.Column("tenant", sa.Text, nullable=False, comment="empty for admin"),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("expires_us", sa.BigInteger, nullable=False, comment="0: never"),
    sa.Column("parent", sa.Text, nullable=False, server_default="", comment="id of the key that made it; or empty"),
    sa.Column("kind", sa.Text, nullable=False, server_default="key", comment="key, or session: a browser's"),
    sa.Column("used_us", sa.BigInteger, nullable=False, server_default="0", comment="last use, to the minute; 0: none"),
    sa.Index("emq_push_keys_id", "environment", "id"),
    sa.Index("emq_push_keys_parent", "environment", "parent"),
)

replays = _table(
    "emq_push_replays",
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, comment="running, paused, cancelled or done"),
    sa.Column("body", sa.Text, nullable=False, comment="JSON: filter, rate, priority, counts, cursor"),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("changed_us", sa.BigInteger, nullable=False),
    sa.Index("emq_push_replays_tenant", "environment", "tenant", "created_us", "id"),
    sa.Index("emq_push_replays_state", "environment", "state"),
)

event_types = _table(
    "emq_push_event_types",
    sa.Column("name", sa.Text, primary_key=True, comment="such as order.paid; empty for what holds for all types"),
    sa.Column("body", sa.Text, nullable=False, comment="the event type as JSON, without what `content` has"),
    sa.Column("content", sa.Text, nullable=False, comment="JSON: schemas by version, example"),
    sa.Column("created_us", sa.BigInteger, nullable=False),
    sa.Column("changed_us", sa.BigInteger, nullable=False, comment="of the empty name: of any type"),
    rowid=True,
)

audit_log = _table(
    "emq_push_audit_log",
    sa.Column("created_us", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False, comment="empty for changes of no tenant"),
    sa.Column("actor", _Begun, nullable=False, comment="id and name of the key"),
    sa.Column("action", _Begun, nullable=False, comment="such as endpoint.changed"),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("changes", sa.Text, nullable=False, comment="JSON, without secrets"),
    sa.Index("emq_push_audit_log_tenant", "environment", "tenant", "created_us", "id"),
    sa.Index("emq_push_audit_log_actor", "environment", "actor", "created_us", "id"),
    sa.Index("emq_push_audit_log_action", "environment", "action", "created_us", "id"),
    sa.Index("emq_push_audit_log_target", "environment", "target", "created_us", "id"),
)

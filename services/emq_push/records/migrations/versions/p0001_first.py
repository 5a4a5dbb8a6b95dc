"""Tenants, endpoints, messages, deliveries, attempts, keys, replays, the audit log."""

import sqlalchemy as sa
from alembic import op

revision = "p0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "emq_push_tenants",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("body", sa.Text, nullable=False, comment="the tenant as JSON"),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("changed_us", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "emq_push_endpoints",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("topic", sa.Text, primary_key=True, comment="the endpoint's topic, <tenant>.<endpoint>"),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False, comment="its id, such as ep_..."),
        sa.Column("body", sa.Text, nullable=False, comment="the endpoint as JSON, without secrets"),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("changed_us", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "emq_push_messages",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("message", sa.Text, primary_key=True, comment="its id: the caller's own, or msg_..."),
        sa.Column("event_type", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=True, comment="messages of one key are delivered in order"),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("expires_us", sa.BigInteger, nullable=False, comment="when the row may be deleted"),
        sa.Column("payload", sa.LargeBinary, nullable=True, comment="null once it was erased"),
        sa.Column("body", sa.Text, nullable=False, comment="the rest as JSON: content type, key, priority, tags"),
    )
    op.create_table(
        "emq_push_deliveries",
        sa.Column("environment", sa.Text, primary_key=True),
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
    )
    op.create_table(
        "emq_push_attempts",
        sa.Column("environment", sa.Text, primary_key=True),
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
    )
    op.create_table(
        "emq_push_idempotency",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True, comment="the caller's Idempotency-Key"),
        sa.Column("digest", sa.Text, nullable=False, comment="of the request's path and body"),
        sa.Column("answer", sa.Text, nullable=False, comment="as JSON; empty while the request is under way"),
        sa.Column("created_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "emq_push_unsent",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True, comment="of a batch of messages that were accepted together"),
        sa.Column(
            "claimed_us", sa.BigInteger, nullable=False, comment="when a process last began to send them; 0: free"
        ),
        sa.Column("body", sa.Text, nullable=False, comment="JSON: the ids of the messages by tenant"),
    )
    op.create_table(
        "emq_push_keys",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, primary_key=True, comment="SHA-256 of the key"),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False, comment="admin, or for one tenant: read, send, manage"),
        sa.Column("tenant", sa.Text, nullable=False, comment="empty for admin"),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("expires_us", sa.BigInteger, nullable=False, comment="0: never"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "emq_push_replays",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False, comment="running, paused, cancelled or done"),
        sa.Column("body", sa.Text, nullable=False, comment="JSON: filter, rate, priority, counts, cursor"),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("changed_us", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "emq_push_audit_log",
        sa.Column("environment", sa.Text, primary_key=True),
        sa.Column("created_us", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False, comment="empty for changes of no tenant"),
        sa.Column("actor", sa.Text, nullable=False, comment="id and name of the key"),
        sa.Column("action", sa.Text, nullable=False, comment="such as endpoint.changed"),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("changes", sa.Text, nullable=False, comment="JSON, without secrets"),
        sqlite_with_rowid=False,
    )
    op.create_index("emq_push_endpoints_tenant", "emq_push_endpoints", ["environment", "tenant", "endpoint"])
    op.create_index(
        "emq_push_messages_created", "emq_push_messages", ["environment", "tenant", "created_us", "message"]
    )
    op.create_index("emq_push_messages_expires", "emq_push_messages", ["environment", "expires_us"])
    op.create_index(
        "emq_push_messages_key",
        "emq_push_messages",
        ["environment", "tenant", "key"],
        sqlite_where=sa.text("key IS NOT NULL"),
        postgresql_where=sa.text("key IS NOT NULL"),
    )
    op.create_index(
        "emq_push_deliveries_created",
        "emq_push_deliveries",
        ["environment", "tenant", "created_us", "topic", "message"],
    )
    op.create_index(
        "emq_push_deliveries_state",
        "emq_push_deliveries",
        ["environment", "tenant", "state", "created_us", "topic", "message"],
    )
    op.create_index(
        "emq_push_deliveries_endpoint",
        "emq_push_deliveries",
        ["environment", "topic", "state", "created_us", "message"],
    )
    op.create_index("emq_push_deliveries_message", "emq_push_deliveries", ["environment", "tenant", "message"])
    op.create_index("emq_push_attempts_started", "emq_push_attempts", ["environment", "started_us"])
    op.create_index(
        "emq_push_attempts_endpoint", "emq_push_attempts", ["environment", "topic", "started_us", "message"]
    )
    op.create_index("emq_push_idempotency_created", "emq_push_idempotency", ["environment", "created_us"])
    op.create_index("emq_push_keys_id", "emq_push_keys", ["environment", "id"])
    op.create_index("emq_push_replays_tenant", "emq_push_replays", ["environment", "tenant", "created_us", "id"])
    op.create_index("emq_push_replays_state", "emq_push_replays", ["environment", "state"])
    op.create_index("emq_push_audit_log_tenant", "emq_push_audit_log", ["environment", "tenant", "created_us", "id"])


def downgrade() -> None:
    op.drop_table("emq_push_tenants")
    op.drop_table("emq_push_endpoints")
    op.drop_table("emq_push_messages")
    op.drop_table("emq_push_deliveries")
    op.drop_table("emq_push_attempts")
    op.drop_table("emq_push_idempotency")
    op.drop_table("emq_push_unsent")
    op.drop_table("emq_push_keys")
    op.drop_table("emq_push_replays")
    op.drop_table("emq_push_audit_log")

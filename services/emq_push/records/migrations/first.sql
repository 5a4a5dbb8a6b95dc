CREATE TABLE emq_push_attempts (
    environment TEXT NOT NULL,
    message TEXT NOT NULL,
    topic TEXT NOT NULL,
    started_us BIGINT NOT NULL,
    number INTEGER NOT NULL,
    took_us BIGINT NOT NULL,
    status INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    answer TEXT NOT NULL,
    host TEXT NOT NULL,
    PRIMARY KEY (environment, message, topic, started_us)
);
CREATE INDEX emq_push_attempts_endpoint ON emq_push_attempts (environment, topic, started_us, message);
CREATE INDEX emq_push_attempts_started ON emq_push_attempts (environment, started_us);

CREATE TABLE emq_push_audit_log (
    environment TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    actor TEXT NOT NULL,  -- SQLite
    actor TEXT COLLATE "C" NOT NULL,  -- PostgreSQL
    action TEXT NOT NULL,  -- SQLite
    action TEXT COLLATE "C" NOT NULL,  -- PostgreSQL
    target TEXT NOT NULL,
    changes TEXT NOT NULL,
    PRIMARY KEY (environment, created_us, id)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL
CREATE INDEX emq_push_audit_log_action ON emq_push_audit_log (environment, action, created_us, id);
CREATE INDEX emq_push_audit_log_actor ON emq_push_audit_log (environment, actor, created_us, id);
CREATE INDEX emq_push_audit_log_target ON emq_push_audit_log (environment, target, created_us, id);
CREATE INDEX emq_push_audit_log_tenant ON emq_push_audit_log (environment, tenant, created_us, id);

CREATE TABLE emq_push_deliveries (
    environment TEXT NOT NULL,
    topic TEXT NOT NULL,
    message TEXT NOT NULL,
    tenant TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    status INTEGER NOT NULL,
    reason TEXT NOT NULL,
    next_us BIGINT NOT NULL,
    settled_us BIGINT NOT NULL,
    PRIMARY KEY (environment, topic, message)
);
CREATE INDEX emq_push_deliveries_created ON emq_push_deliveries (environment, tenant, created_us, topic, message);
CREATE INDEX emq_push_deliveries_endpoint ON emq_push_deliveries (environment, topic, state, created_us, message);
CREATE INDEX emq_push_deliveries_message ON emq_push_deliveries (environment, tenant, message);
CREATE INDEX emq_push_deliveries_state ON emq_push_deliveries (environment, tenant, state, created_us, topic, message);

CREATE TABLE emq_push_endpoints (
    environment TEXT NOT NULL,
    topic TEXT NOT NULL,
    tenant TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    body TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    changed_us BIGINT NOT NULL,
    log_end BIGINT DEFAULT '0' NOT NULL,
    PRIMARY KEY (environment, topic)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL
CREATE INDEX emq_push_endpoints_tenant ON emq_push_endpoints (environment, tenant, endpoint);

CREATE TABLE emq_push_event_types (
    environment TEXT NOT NULL,
    name TEXT NOT NULL,
    body TEXT NOT NULL,
    content TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    changed_us BIGINT NOT NULL,
    PRIMARY KEY (environment, name)
);

CREATE TABLE emq_push_idempotency (
    environment TEXT NOT NULL,
    tenant TEXT NOT NULL,
    "key" TEXT NOT NULL,  -- SQLite
    key TEXT NOT NULL,  -- PostgreSQL
    digest TEXT NOT NULL,
    answer TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    PRIMARY KEY (environment, tenant, "key")  -- SQLite
    PRIMARY KEY (environment, tenant, key)  -- PostgreSQL
);
CREATE INDEX emq_push_idempotency_created ON emq_push_idempotency (environment, created_us);

CREATE TABLE emq_push_keys (
    environment TEXT NOT NULL,
    digest TEXT NOT NULL,
    id TEXT NOT NULL,
    role TEXT NOT NULL,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    expires_us BIGINT NOT NULL,
    parent TEXT DEFAULT '' NOT NULL,
    kind TEXT DEFAULT 'key' NOT NULL,
    used_us BIGINT DEFAULT '0' NOT NULL,
    PRIMARY KEY (environment, digest)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL
CREATE INDEX emq_push_keys_id ON emq_push_keys (environment, id);
CREATE INDEX emq_push_keys_parent ON emq_push_keys (environment, parent);

CREATE TABLE emq_push_log (
    environment TEXT NOT NULL,
    topic TEXT NOT NULL,
    number BIGINT NOT NULL,
    message TEXT NOT NULL,
    placed_us BIGINT NOT NULL,
    PRIMARY KEY (environment, topic, number)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL
CREATE UNIQUE INDEX emq_push_log_message ON emq_push_log (environment, topic, message);

CREATE TABLE emq_push_messages (
    environment TEXT NOT NULL,
    tenant TEXT NOT NULL,
    message TEXT NOT NULL,
    event_type TEXT NOT NULL,
    "key" TEXT,  -- SQLite
    key TEXT,  -- PostgreSQL
    created_us BIGINT NOT NULL,
    expires_us BIGINT NOT NULL,
    payload BLOB,  -- SQLite
    payload BYTEA,  -- PostgreSQL
    body TEXT NOT NULL,
    PRIMARY KEY (environment, tenant, message)
);
CREATE INDEX emq_push_messages_created ON emq_push_messages (environment, tenant, created_us, message);
CREATE INDEX emq_push_messages_expires ON emq_push_messages (environment, expires_us);
CREATE INDEX emq_push_messages_key ON emq_push_messages (environment, tenant, "key", created_us, message) WHERE key IS NOT NULL;  -- SQLite
CREATE INDEX emq_push_messages_key ON emq_push_messages (environment, tenant, key, created_us, message) WHERE key IS NOT NULL;  -- PostgreSQL

CREATE TABLE emq_push_replays (
    environment TEXT NOT NULL,
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    state TEXT NOT NULL,
    body TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    changed_us BIGINT NOT NULL,
    PRIMARY KEY (environment, id)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL
CREATE INDEX emq_push_replays_state ON emq_push_replays (environment, state);
CREATE INDEX emq_push_replays_tenant ON emq_push_replays (environment, tenant, created_us, id);

CREATE TABLE emq_push_tenants (
    environment TEXT NOT NULL,
    tenant TEXT NOT NULL,
    body TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    changed_us BIGINT NOT NULL,
    PRIMARY KEY (environment, tenant)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

CREATE TABLE emq_push_unsent (
    environment TEXT NOT NULL,
    id TEXT NOT NULL,
    claimed_us BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (environment, id)
);

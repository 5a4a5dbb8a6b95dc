CREATE TABLE emq_scheduling_cancels (
    environment TEXT NOT NULL,
    pool TEXT NOT NULL,
    task TEXT NOT NULL,
    asked_us BIGINT NOT NULL,
    PRIMARY KEY (environment, pool, task)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL
CREATE INDEX emq_scheduling_cancels_asked ON emq_scheduling_cancels (environment, pool, asked_us);

CREATE TABLE emq_scheduling_pools (
    environment TEXT NOT NULL,
    pool TEXT NOT NULL,
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_us BIGINT NOT NULL,
    PRIMARY KEY (environment, pool)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

CREATE TABLE emq_scheduling_progress (
    environment TEXT NOT NULL,
    pool TEXT NOT NULL,
    task TEXT NOT NULL,
    type TEXT NOT NULL,
    tenant TEXT NOT NULL,
    submitted_us BIGINT NOT NULL,
    started_us BIGINT NOT NULL,
    told_us BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (environment, pool, task, type, tenant, submitted_us)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

CREATE TABLE emq_scheduling_snapshots (
    environment TEXT NOT NULL,
    pool TEXT NOT NULL,
    body TEXT NOT NULL,
    at_us BIGINT NOT NULL,
    PRIMARY KEY (environment, pool)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

CREATE TABLE emq_scheduling_tasks (
    environment TEXT NOT NULL,
    pool TEXT NOT NULL,
    started_us BIGINT NOT NULL,
    task TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    resource TEXT NOT NULL,
    type TEXT NOT NULL,
    tenant TEXT NOT NULL,
    "key" TEXT NOT NULL,  -- SQLite
    key TEXT NOT NULL,  -- PostgreSQL
    submitted_us BIGINT NOT NULL,
    deadline_us BIGINT NOT NULL,
    ended_us BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    version BIGINT NOT NULL,
    costs TEXT NOT NULL,
    actual TEXT NOT NULL,
    error TEXT NOT NULL,
    result BLOB NOT NULL,  -- SQLite
    result BYTEA NOT NULL,  -- PostgreSQL
    host TEXT NOT NULL,
    keys TEXT NOT NULL,
    as_type TEXT NOT NULL,
    PRIMARY KEY (environment, pool, started_us, task, attempt, resource)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL
CREATE INDEX emq_scheduling_tasks_task ON emq_scheduling_tasks (environment, pool, task);

CREATE TABLE emq_scheduling_usage (
    environment TEXT NOT NULL,
    pool TEXT NOT NULL,
    resource TEXT NOT NULL,
    body TEXT NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (environment, pool, resource)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

CREATE TABLE emq_scheduling_versions (
    environment TEXT NOT NULL,
    pool TEXT NOT NULL,
    version BIGINT NOT NULL,
    body TEXT NOT NULL,
    changed_us BIGINT NOT NULL,
    PRIMARY KEY (environment, pool, version)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

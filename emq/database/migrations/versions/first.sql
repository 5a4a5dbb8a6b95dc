CREATE TABLE emq_checkpoints (
    environment TEXT NOT NULL,
    queue TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    watermark BIGINT NOT NULL,
    finished TEXT NOT NULL,
    marks TEXT DEFAULT '[]' NOT NULL,
    notes TEXT DEFAULT '[]' NOT NULL,
    PRIMARY KEY (environment, queue)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

CREATE TABLE emq_families (
    environment TEXT NOT NULL,
    name TEXT NOT NULL,  -- SQLite
    name TEXT COLLATE "C" NOT NULL,  -- PostgreSQL
    body TEXT NOT NULL,
    live BIGINT NOT NULL,
    PRIMARY KEY (environment, name)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

CREATE TABLE emq_host_stats (
    environment TEXT NOT NULL,
    host TEXT NOT NULL,
    body TEXT NOT NULL,
    updated_ms BIGINT NOT NULL,
    PRIMARY KEY (environment, host)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

CREATE TABLE emq_meta (
    environment TEXT NOT NULL,
    "key" TEXT NOT NULL,  -- SQLite
    key TEXT NOT NULL,  -- PostgreSQL
    value BIGINT NOT NULL,
    PRIMARY KEY (environment, "key")  -- SQLite
    PRIMARY KEY (environment, key)  -- PostgreSQL
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

CREATE TABLE emq_passages (
    environment TEXT NOT NULL,
    topic TEXT NOT NULL,
    group_index INTEGER NOT NULL,
    layout BIGINT NOT NULL,
    tails TEXT NOT NULL,
    passed INTEGER NOT NULL,
    PRIMARY KEY (environment, topic, group_index, layout)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

CREATE TABLE emq_stores (
    environment TEXT NOT NULL,
    identity TEXT NOT NULL,
    scope TEXT NOT NULL,
    place TEXT NOT NULL,
    number BIGINT NOT NULL,
    PRIMARY KEY (environment, identity)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

CREATE TABLE emq_topics (
    environment TEXT NOT NULL,
    name TEXT NOT NULL,  -- SQLite
    name TEXT COLLATE "C" NOT NULL,  -- PostgreSQL
    body TEXT NOT NULL,
    version BIGINT NOT NULL,
    live INTEGER NOT NULL,
    deleted_at BIGINT NOT NULL,
    PRIMARY KEY (environment, name)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL
CREATE INDEX emq_topics_live ON emq_topics (environment, live, version);
CREATE INDEX emq_topics_version ON emq_topics (environment, version);

CREATE TABLE emq_tree_nodes (
    path TEXT NOT NULL,
    parent TEXT NOT NULL,
    data BLOB NOT NULL,  -- SQLite
    data BYTEA NOT NULL,  -- PostgreSQL
    version BIGINT NOT NULL,
    session BIGINT NOT NULL,
    written_ms BIGINT NOT NULL,
    changed BIGINT NOT NULL,
    children_changed BIGINT NOT NULL,
    numbers BIGINT NOT NULL,
    PRIMARY KEY (path)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL
CREATE INDEX emq_tree_nodes_parent ON emq_tree_nodes (parent);
CREATE INDEX emq_tree_nodes_session ON emq_tree_nodes (session);

CREATE TABLE emq_tree_sessions (
    id BIGINT NOT NULL,
    beat BIGINT NOT NULL,
    timeout_ms BIGINT NOT NULL,
    process TEXT NOT NULL,
    PRIMARY KEY (id)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

CREATE TABLE emq_spark_writes (
    environment TEXT NOT NULL,
    run TEXT NOT NULL,
    batch BIGINT NOT NULL,
    part BIGINT NOT NULL,
    attempt TEXT NOT NULL,
    done BIGINT NOT NULL,
    digest BIGINT NOT NULL,
    begun BIGINT NOT NULL,
    tails TEXT NOT NULL,
    updated_ms BIGINT NOT NULL,
    PRIMARY KEY (environment, run, batch, part)
) WITHOUT ROWID;  -- SQLite
);  -- PostgreSQL

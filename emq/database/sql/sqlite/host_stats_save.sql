-- Keep the latest snapshot of a host.
INSERT INTO emq_host_stats (environment, host, body, updated_ms)
VALUES (:environment, :host, :body, :updated_ms)
ON CONFLICT (environment, host) DO UPDATE SET body = excluded.body, updated_ms = excluded.updated_ms

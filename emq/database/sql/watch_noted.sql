-- Return the topics that somebody looks at, at most :most, with the times up to which they are noted.
SELECT key, value FROM emq_meta
WHERE environment = :environment AND key LIKE :like AND value >= :now_ms
LIMIT :most

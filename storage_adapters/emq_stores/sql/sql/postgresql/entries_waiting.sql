-- A page of a lane's waiting entries in order of (at_ms, id). It leaves out the first :skipped, and ends with the entry
-- that brings the bodies to :max_bytes.
WITH found AS (
    SELECT e.id, e.body, e.at_ms, e.priority, octet_length(e.body) AS size,
           sum(octet_length(e.body)) OVER (ORDER BY e.at_ms, e.id ROWS UNBOUNDED PRECEDING) AS gathered
    FROM (
        SELECT x.id, x.body, x.at_ms, x.priority
        FROM store_groups AS g
        JOIN store_entries AS x ON x.slot_id = g.id AND x.state = 0
        WHERE g.environment = :environment AND g.name = :lane
        ORDER BY x.at_ms, x.id
        LIMIT :page OFFSET :skipped
    ) AS e
)
SELECT id, body, at_ms, priority
FROM found
WHERE gathered - size < :max_bytes
ORDER BY at_ms, id

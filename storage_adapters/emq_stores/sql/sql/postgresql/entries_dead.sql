-- A page of a lane's dead letters in order of (at_ms, id). It starts behind (:after_ms, :after_id), and ends with the
-- letter that brings the bodies to :max_bytes.
WITH found AS (
    SELECT e.id, e.body, e.reason, e.at_ms, octet_length(e.body) AS size,
           sum(octet_length(e.body)) OVER (ORDER BY e.at_ms, e.id ROWS UNBOUNDED PRECEDING) AS gathered
    FROM (
        SELECT x.id, x.body, x.reason, x.at_ms
        FROM store_groups AS g
        JOIN store_entries AS x ON x.slot_id = g.id AND x.state = 2
        WHERE g.environment = :environment AND g.name = :lane AND (x.at_ms, x.id) > (:after_ms, :after_id)
        ORDER BY x.at_ms, x.id
        LIMIT :page
    ) AS e
)
SELECT id, body, reason, at_ms
FROM found
WHERE gathered - size < :max_bytes
ORDER BY at_ms, id

-- A page of a slot's dead members in order of (time of death, member). It starts behind (:after_ms, :after_member),
-- leaves out the first :skipped, and ends with the member that brings members, bodies and notes to :max_bytes.
WITH found AS (
    SELECT m.*, sum(m.size) OVER (ORDER BY m.rank, m.member ROWS UNBOUNDED PRECEDING) AS gathered
    FROM (
        SELECT x.member, x.rank, x.body, x.note, x.reason, x.history,
               octet_length(x.member) + COALESCE(octet_length(x.body), 0) + COALESCE(octet_length(x.note), 0) AS size
        FROM store_groups AS g
        JOIN store_members AS x ON x.slot_id = g.id AND x.state = 2
        WHERE g.environment = :environment AND g.name = :slot AND x.rank >= CAST(:after_ms AS float8)
          AND (x.rank > CAST(:after_ms AS float8) OR x.member > CAST(:after_member AS bytea))
        ORDER BY x.rank, x.member
        LIMIT :page OFFSET :skipped
    ) AS m
)
SELECT member, rank, body, note, reason, history
FROM found
WHERE gathered - size < :max_bytes
ORDER BY rank, member

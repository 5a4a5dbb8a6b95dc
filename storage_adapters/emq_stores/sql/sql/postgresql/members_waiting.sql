-- A page of a slot's waiting members in claim order. It leaves out the first :skip, and ends with the member that
-- brings members, bodies and notes to :max_bytes.
WITH found AS (
    SELECT m.*, sum(m.size) OVER (ORDER BY m.rank, m.id ROWS UNBOUNDED PRECEDING) AS gathered
    FROM (
        SELECT x.id, x.member, x.rank, x.body, x.note, x.merged,
               octet_length(x.member) + COALESCE(octet_length(x.body), 0) + COALESCE(octet_length(x.note), 0) AS size
        FROM store_groups AS g
        JOIN store_members AS x ON x.slot_id = g.id AND x.state = 0
        WHERE g.environment = :environment AND g.name = :slot
        ORDER BY x.rank, x.id
        LIMIT :page OFFSET :skip
    ) AS m
)
SELECT member, rank, body, note, merged
FROM found
WHERE gathered - size < :max_bytes
ORDER BY rank, id

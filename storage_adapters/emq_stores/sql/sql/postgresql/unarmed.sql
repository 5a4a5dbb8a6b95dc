-- Those of these queues and lanes that are not armed for :instance, and lanes with an entry due. :names is a JSON array.
SELECT n.value FROM jsonb_array_elements_text(CAST(:names AS jsonb)) AS n (value)
WHERE NOT EXISTS (
    SELECT 1 FROM store_queues AS q
    WHERE q.environment = :environment AND q.name = n.value AND q.armed = :instance
) AND NOT EXISTS (
    SELECT 1 FROM store_groups AS g
    WHERE g.environment = :environment AND g.name = n.value AND g.armed = :instance AND g.armed_rank > :now_ms
)

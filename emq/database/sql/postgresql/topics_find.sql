-- Bodies of the live topics among :names (JSON array of names).
SELECT t.name, t.body
FROM emq_topics AS t
WHERE t.environment = :environment AND t.live = 1
  AND t.name = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(:names AS jsonb))))

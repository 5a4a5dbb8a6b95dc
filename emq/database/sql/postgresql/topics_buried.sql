-- Names and bodies of the deleted topics among :names (JSON array of names).
SELECT t.name, t.body
FROM emq_topics AS t
WHERE t.environment = :environment AND t.live = 0
  AND t.name = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(:names AS jsonb))))

-- The rows among :names (JSON array of names), tombstones included.
SELECT t.name, t.body, t.live, t.version
FROM emq_topics AS t
WHERE t.environment = :environment
  AND t.name = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(:names AS jsonb))))

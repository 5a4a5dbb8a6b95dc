-- Make the missing rows of groups, and return their names. :names is a JSON array.
INSERT INTO store_groups (environment, name)
SELECT :environment, n.name FROM jsonb_array_elements_text(CAST(:names AS jsonb)) AS n (name)
ORDER BY n.name
ON CONFLICT DO NOTHING
RETURNING name

-- Make the missing rows of groups, and return their names. :names is a JSON array.
INSERT INTO store_groups (environment, name)
SELECT :environment, n.value FROM json_each(:names) AS n
WHERE true
ON CONFLICT DO NOTHING
RETURNING name

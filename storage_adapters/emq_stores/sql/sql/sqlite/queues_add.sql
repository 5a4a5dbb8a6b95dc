-- Make the missing rows of queues, and return their names; the rows of their groups exist already.
-- :names is JSON [[queue, group], ...].
-- :incarnation is a random number, which all rows that are made now get.
INSERT INTO store_queues (environment, name, group_id, incarnation)
SELECT :environment, n.value ->> 0, g.id, :incarnation
FROM json_each(:names) AS n
CROSS JOIN store_groups AS g ON g.environment = :environment AND g.name = n.value ->> 1
WHERE true
ON CONFLICT DO NOTHING
RETURNING name

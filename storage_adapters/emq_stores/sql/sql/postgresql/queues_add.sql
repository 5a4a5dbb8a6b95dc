-- Make the missing rows of queues, and return their names; the rows of their groups exist already.
-- :names is JSON [[queue, group], ...].
-- A group that another transaction is about to drop is waited for, and then has no queue: its row is made again first.
-- :incarnation is a random number, which all rows that are made now get.
INSERT INTO store_queues (environment, name, group_id, incarnation)
SELECT :environment, n ->> 0, g.id, CAST(:incarnation AS bigint)
FROM jsonb_array_elements(CAST(:names AS jsonb)) AS n
JOIN store_groups AS g ON g.environment = :environment AND g.name = n ->> 1
ORDER BY 2
FOR KEY SHARE OF g
ON CONFLICT DO NOTHING
RETURNING name

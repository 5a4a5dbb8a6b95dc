-- For each slot and state: the number of members, their first rank, the number of members up to a bound, and the number
-- of the slot's resting members.
-- :rows is JSON [[name, bound], ...].
SELECT g.name, m.state, count(*) AS members, min(m.rank) AS first, sum(m.rank <= r.value ->> 1) AS bounded,
       (SELECT count(*) FROM store_rests AS t WHERE t.slot_id = g.id) AS resting
FROM json_each(:rows) AS r
CROSS JOIN store_groups AS g ON g.environment = :environment AND g.name = r.value ->> 0
CROSS JOIN store_members AS m ON m.slot_id = g.id
GROUP BY g.id, g.name, m.state

-- How many members each slot has in each state, the first rank of that state, and how many rank up to a bound.
-- :rows is JSON [[name, bound], ...].
SELECT g.name, m.state, count(*) AS members, min(m.rank) AS first,
       count(*) FILTER (WHERE m.rank <= CAST(r ->> 1 AS float8)) AS bounded
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
JOIN store_groups AS g ON g.environment = :environment AND g.name = r ->> 0
JOIN store_members AS m ON m.slot_id = g.id
GROUP BY g.name, m.state

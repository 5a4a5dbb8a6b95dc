-- Bring deliveries up to date after attempts.
-- :rows is as for attempts_add, each delivery once.
-- A success counts whatever the row says. Any other outcome counts only if nothing newer is known, since two hosts may
-- write the attempts of one message, and a write whose answer was lost is repeated. A parked attempt was not made.
-- Neither was one for which the message had expired: the delivery is dead, and keeps the status of its last answer.
WITH made AS (
    SELECT r ->> 0 AS topic, r ->> 1 AS message, CAST(r ->> 2 AS int) - CAST(r ->> 6 IN ('parked', 'expired') AS int) AS attempts,
           CAST(r ->> 5 AS int) AS status, r ->> 7 AS reason, CAST(r ->> 9 AS bigint) AS next_us,
           r ->> 6 = 'expired' AS expired,
           CASE r ->> 6 WHEN 'delivered' THEN 'delivered' WHEN 'dead' THEN 'dead' WHEN 'expired' THEN 'dead'
                ELSE 'pending' END AS state,
           CASE WHEN r ->> 6 IN ('delivered', 'dead', 'expired') THEN CAST(r ->> 3 AS bigint) + CAST(r ->> 4 AS bigint)
                ELSE 0 END AS settled_us
    FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
)
UPDATE emq_push_deliveries AS d
SET state = made.state, attempts = greatest(d.attempts, made.attempts),
    status = CASE WHEN made.expired THEN d.status ELSE made.status END,
    reason = made.reason, next_us = made.next_us, settled_us = made.settled_us
FROM made
WHERE d.environment = :environment AND d.topic = made.topic AND d.message = made.message
AND (d.state = 'pending' AND d.attempts <= made.attempts OR made.state = 'delivered')

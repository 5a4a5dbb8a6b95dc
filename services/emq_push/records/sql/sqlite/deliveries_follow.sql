-- Bring deliveries up to date after attempts.
-- :rows is as for attempts_add, each delivery once.
-- A success counts whatever the row says. Any other outcome counts only if nothing newer is known, since two hosts may
-- write the attempts of one message, and a write whose answer was lost is repeated. A parked attempt was not made.
-- Neither was one for which the message had expired: the delivery is dead, and keeps the status of its last answer.
-- Without MATERIALIZED, SQLite may look at each attempt for each delivery.
WITH made AS MATERIALIZED (
    SELECT value ->> 0 AS topic, value ->> 1 AS message, (value ->> 2) - (value ->> 6 IN ('parked', 'expired')) AS attempts,
           value ->> 5 AS status, value ->> 7 AS reason, value ->> 9 AS next_us,
           value ->> 6 = 'expired' AS expired,
           CASE value ->> 6 WHEN 'delivered' THEN 'delivered' WHEN 'dead' THEN 'dead' WHEN 'expired' THEN 'dead'
                ELSE 'pending' END AS state,
           CASE WHEN value ->> 6 IN ('delivered', 'dead', 'expired') THEN (value ->> 3) + (value ->> 4) ELSE 0 END AS settled_us
    FROM json_each(:rows)
)
UPDATE emq_push_deliveries AS d
SET state = made.state, attempts = max(d.attempts, made.attempts),
    status = CASE WHEN made.expired THEN d.status ELSE made.status END,
    reason = made.reason, next_us = made.next_us, settled_us = made.settled_us
FROM made
WHERE d.environment = :environment AND d.topic = made.topic AND d.message = made.message
AND (d.state = 'pending' AND d.attempts <= made.attempts OR made.state = 'delivered')

-- Add attempts; one that is there already stays as it is.
-- :rows is JSON [[topic, message, number, started_us, took_us, status, outcome, reason, answer, next_us], ...].
INSERT INTO emq_push_attempts
    (environment, topic, message, started_us, number, took_us, status, outcome, reason, answer, host)
SELECT :environment, r ->> 0, r ->> 1, CAST(r ->> 3 AS bigint), CAST(r ->> 2 AS int), CAST(r ->> 4 AS bigint),
       CAST(r ->> 5 AS int), r ->> 6, r ->> 7, r ->> 8, :host
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
ON CONFLICT DO NOTHING

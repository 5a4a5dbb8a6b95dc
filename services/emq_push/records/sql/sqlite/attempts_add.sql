-- Add attempts; one that is there already stays as it is.
-- :rows is JSON [[topic, message, number, started_us, took_us, status, outcome, reason, answer, next_us], ...].
INSERT INTO emq_push_attempts
    (environment, topic, message, started_us, number, took_us, status, outcome, reason, answer, host)
SELECT :environment, r.value ->> 0, r.value ->> 1, r.value ->> 3, r.value ->> 2, r.value ->> 4, r.value ->> 5,
       r.value ->> 6, r.value ->> 7, r.value ->> 8, :host
FROM json_each(:rows) AS r
WHERE true
ON CONFLICT DO NOTHING

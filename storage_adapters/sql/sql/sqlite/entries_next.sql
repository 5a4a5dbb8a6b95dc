-- When the next waiting entry of each slot is due; NULL for none. :slots is a JSON array of ids.
SELECT s.value AS slot_id, (SELECT min(at_ms) FROM store_entries WHERE slot_id = s.value AND state = 0) AS due_ms
FROM json_each(:slots) AS s

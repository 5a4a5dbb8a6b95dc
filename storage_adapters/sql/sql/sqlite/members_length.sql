-- How many members wait in each slot. :slots is a JSON array of ids.
SELECT s.value AS slot_id, (SELECT count(*) FROM store_members WHERE slot_id = s.value AND state = 0) AS waiting
FROM json_each(:slots) AS s

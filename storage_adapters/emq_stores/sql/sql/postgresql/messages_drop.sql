-- Columns: queue_id, first, end: drops the offsets in [first, end).
DELETE FROM store_messages AS m
USING unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS r (queue_id, first, upto)
WHERE m.queue_id = r.queue_id AND m.msg_offset >= r.first AND m.msg_offset < r.upto

-- Return the numbers of an environment that have these keys. :keys is a JSON array.
SELECT key, value FROM emq_meta WHERE environment = :environment AND key = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(:keys AS jsonb))))

-- Return the numbers of an environment that have these keys. :keys is a JSON array.
SELECT key, value FROM emq_meta WHERE environment = :environment AND key IN (SELECT value FROM json_each(:keys))

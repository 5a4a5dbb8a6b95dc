-- Give the database's :environment an identity, unless somebody was quicker.
INSERT INTO emq_meta (environment, key, value)
VALUES (:environment, :key, :value)
ON CONFLICT (environment, key) DO NOTHING

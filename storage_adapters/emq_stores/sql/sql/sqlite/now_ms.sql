-- The clock of the machine, in milliseconds since 1970.
SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)

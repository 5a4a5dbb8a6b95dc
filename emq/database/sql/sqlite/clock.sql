-- Microseconds since the epoch, now; SQLite's clock is this machine's, to the millisecond.
SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000

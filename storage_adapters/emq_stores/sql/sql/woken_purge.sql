-- Remove wake-ups that their instance never took; the instance is gone.
DELETE FROM store_woken WHERE at_ms < :before_ms RETURNING 1

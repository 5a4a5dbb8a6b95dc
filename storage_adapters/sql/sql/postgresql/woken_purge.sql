-- Remove wake-ups that no instance took; their instance is gone.
DELETE FROM store_woken WHERE at_ms < :before_ms RETURNING 1

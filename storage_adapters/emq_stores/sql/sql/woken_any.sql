-- One row if there are wake-ups for :instance.
SELECT 1 FROM store_woken WHERE instance = :instance LIMIT 1

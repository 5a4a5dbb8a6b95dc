-- One row if there are wake-ups for :instance or for everybody.
SELECT 1 FROM store_woken WHERE instance IN (:instance, 'everybody_' || :environment) LIMIT 1

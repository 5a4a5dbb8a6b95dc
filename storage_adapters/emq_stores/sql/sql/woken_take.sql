-- Take the wake-ups for :instance or for everybody.
DELETE FROM store_woken WHERE instance IN (:instance, 'everybody_' || :environment) RETURNING name

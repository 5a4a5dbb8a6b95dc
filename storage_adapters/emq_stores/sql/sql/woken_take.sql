-- Take the wake-ups for :instance.
DELETE FROM store_woken WHERE instance = :instance RETURNING name

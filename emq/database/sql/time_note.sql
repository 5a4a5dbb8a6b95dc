-- Set a note of the environment's time, whose row the transaction has locked.
UPDATE emq_meta SET value = :value WHERE environment = :environment AND key = :key

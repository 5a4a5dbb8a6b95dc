-- The names of the queues that hold messages.
SELECT name FROM store_queues WHERE environment = :environment AND tail > head ORDER BY name

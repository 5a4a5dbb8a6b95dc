"""EMQ: tens of thousands of queues, each consumed at no more than its own rate, in priority order, at least once."""

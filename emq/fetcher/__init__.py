"""Fetching: loops that bring messages from the store into local buffers before the dispatcher needs them.

A host *reads* queues and *claims* from lanes and slots; a claimed message is hidden from other claims until it is
settled or given back. A read that reaches the end of a queue *arms* the queue: the store then *wakes* the host when a
message comes. A claim arms a lane or slot: the store then wakes the host when an entry comes that is due earlier than
all others. So an empty queue, lane or slot costs nothing.
"""

"""Fetching: loops that bring messages from the store into local buffers before the dispatcher needs them.

A host *reads* queues and *claims* from lanes and slots; a claimed message is hidden from other claims until it is
settled. A read or claim that finds nothing *arms* the queue, lane or slot: the store then *wakes* the host when a
message comes. So an empty queue costs nothing.
"""

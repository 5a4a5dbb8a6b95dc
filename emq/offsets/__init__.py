"""The progress of each queue: tracked in memory, and saved in the database as checkpoints.

Each message of a queue has an *offset*, its number in the queue. The *watermark* is the first offset that is not
finished. A *checkpoint* is the saved watermark, with the finished offsets above it. The *lag* of a topic is the number
of its unfinished messages.
"""

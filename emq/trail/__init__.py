"""The trail: the record of each message's life in Parquet files.

Each producer and host is a *source* and writes *segments*, files of events (`emq.trail.events`). `Trail` (in
`emq.trail.writer`) records; it needs pyarrow, so this package exports only the names that the core needs: the protocol,
and the sink that does nothing.
"""

from emq.trail.sink import NullTrail, TrailSink

__all__ = ["NullTrail", "TrailSink"]

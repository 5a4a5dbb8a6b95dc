"""The trail: the record of each message's life in Parquet files, and the proof of the promises from this record.

`Trail` (in `emq.trail.writer`) records, `prove` (in `emq.trail.proof`) checks. Both need pyarrow, so this package
exports only the names that the core needs: the protocol, and the sink that does nothing.
"""

from emq.trail.sink import NullTrail, TrailSink

__all__ = ["NullTrail", "TrailSink"]

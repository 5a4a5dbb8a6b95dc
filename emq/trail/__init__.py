"""The trail: the record of each message's life in Parquet files, and the proof of the promises from it.

Each producer and host is a *source* and writes *segments*, files of events (`emq.trail.events`). The promises have
letters: no loss (L), delivered once but for crashes (D), the cap holds (Q), priority (P), key order (K), one owner of a
group (O), offsets (M), in time (T), dead letters once (X). E marks events that contradict each other.

`Trail` (in `emq.trail.writer`) records, `prove` (in `emq.trail.proof`) checks. Both need pyarrow, so this package
exports only the names that the core needs: the protocol, and the sink that does nothing.
"""

from emq.trail.sink import NullTrail, TrailSink

__all__ = ["NullTrail", "TrailSink"]

"""The trail: a ledger of what happened to each message, and the proof that is drawn from it.

`Trail` (in `emq.trail.writer`) records, `prove` (in `emq.trail.proof`) checks. Both need pyarrow, which is why this
package itself offers only what the core needs to know: the protocol, and the sink that does nothing.
"""

from emq.trail.sink import NullTrail, TrailSink

__all__ = ["NullTrail", "TrailSink"]

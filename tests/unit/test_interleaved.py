"""Two owners that take from one queue at the same time are told by their offsets, however little their clocks tell."""

from __future__ import annotations

from pathlib import Path

from emq.storage.message import Message
from emq.trail import events
from emq.trail.options import TrailOptions
from emq.trail.writer import Trail
from emq_proof.proof import Expectations, prove
from support.manual_clock import ManualClock

T0_US = 1_000_000_000_000_000
SKEW_S = 0.25

RUNS = (("one", 1, (0, 1, 3, 4), 0), ("two", 2, (2, 5), 41))
"""Source, epoch, offsets in the order of their starts, and when the first of them starts, in ms."""


def test_after_a_killed_owner_the_next_one_begins_anywhere(tmp_path: Path) -> None:
    options = TrailOptions(rotate_s=60.0, early_s=60.0)
    trails = {name: Trail.open(tmp_path, name, ManualClock(), options) for name in ("producer", "one", "two")}
    offsets = range(6)
    ids = [f"m{offset}" for offset in offsets]
    trails["producer"].record(events.Published(T0_US, "shop", 0, ids, 0, T0_US, offsets, [None] * 6))
    for source, epoch, started, begin_ms in RUNS:
        trail, at_us = trails[source], T0_US + begin_ms * 1000
        trail.record(events.Owned(at_us - 1000, "shop", 0, epoch))
        for offset in started:
            m = Message(f"m{offset}", b"", published_us=T0_US, attempt=1, topic="shop", offset=offset)
            m.started_us = at_us
            trail.started(m, epoch)
            trail.settled(m, at_us + 1000)
            at_us += 10_000
    trails["two"].record(events.Released(at_us - 8_000, "shop", 0, 2))
    for trail in trails.values():
        trail.close()
    proof = prove(tmp_path, Expectations(max_skew_s=SKEW_S, quotas={"shop/0": 100.0}))
    assert not any("below it" in example for example in proof.owners.examples)

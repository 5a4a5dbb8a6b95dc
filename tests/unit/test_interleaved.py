"""Two owners that take from one queue at the same time are told by their offsets, however little their clocks tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emq.runtime.clock import ManualClock
from emq.storage.message import Message
from emq.trail import events
from emq.trail.options import TrailOptions
from emq.trail.writer import Trail
from emq_proof.proof import Expectations, Proof, prove

T0_US = 1_000_000_000_000_000
SKEW_S = 0.25

Run = tuple[str, int, Sequence[int], int]
"""Source, epoch, offsets in the order of their starts, and when the first of them starts, in ms."""


def verified(directory: Path, runs: Sequence[Run], released: Sequence[str], key: str | None = None) -> Proof:
    """The proof of messages that each take 1 ms, 10 ms apart; a source lets go of the group 1 ms after its last."""
    options = TrailOptions(rotate_s=60.0, early_s=60.0)
    trails = {name: Trail.open(directory, name, ManualClock(), options) for name in ("producer", *(r[0] for r in runs))}
    offsets = sorted({offset for run in runs for offset in run[2]})
    ids, keys = [f"m{offset}" for offset in offsets], [key] * len(offsets)
    trails["producer"].record(events.Published(T0_US, "shop", 0, ids, 0, T0_US, offsets, keys))
    for source, epoch, numbers, begin_ms in runs:
        trail, at_us = trails[source], T0_US + begin_ms * 1000
        trail.record(events.Owned(at_us - 1000, "shop", 0, epoch))
        for offset in numbers:
            m = Message(f"m{offset}", b"", key, published_us=T0_US, attempt=1, topic="shop", offset=offset)
            m.started_us = at_us
            trail.started(m, epoch)
            trail.settled(m, at_us + 1000)
            at_us += 10_000
        if source in released:
            trail.record(events.Released(at_us - 8_000, "shop", 0, epoch))
    for trail in trails.values():
        trail.close()
    return prove(directory, Expectations(max_skew_s=SKEW_S, quotas={"shop/0": 100.0}))


def interleaved(proof: Proof) -> bool:
    return any("below it" in example for example in proof.owners.examples)


def test_after_a_killed_owner_the_next_one_begins_anywhere(tmp_path: Path) -> None:
    proof = verified(tmp_path, [("one", 1, (0, 1, 3, 4), 0), ("two", 2, (2, 5), 41)], ["two"])

    assert not interleaved(proof)

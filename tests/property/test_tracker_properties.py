"""The offset tracker against a plain set."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from emq.groups.offset_tracker import OffsetTracker

FIRST = 100

spans = st.tuples(st.integers(FIRST - 5, FIRST + 60), st.integers(0, 8)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(st.one_of(spans, st.integers(FIRST - 5, FIRST + 60)), max_size=60))
@settings(max_examples=400, deadline=None)
def test_the_watermark_is_the_contiguous_prefix_and_the_ranges_are_the_rest(steps: list[int | tuple[int, int]]) -> None:
    tracker = OffsetTracker(FIRST)
    model: set[int] = set()
    for step in steps:
        before = tracker.watermark
        if isinstance(step, int):
            tracker.finish(step, step + 1)
            model.add(step)
        else:
            tracker.finish(*step)
            model.update(range(*step))
        expected = FIRST
        while expected in model:
            expected += 1
        assert tracker.watermark == expected >= before
        ranges = tracker.finished()
        assert tracker.total() == FIRST + sum(o >= FIRST for o in model)
        assert {o for s, e in ranges for o in range(s, e)} == {o for o in model if o > expected}
        flat = [x for r in ranges for x in r]
        assert flat == sorted(set(flat))  # ascending, none empty, none touching
        assert all(s > expected for s, _ in ranges)
        for offset in range(FIRST - 6, FIRST + 70):
            assert tracker.is_finished(offset) == (offset < FIRST or offset in model)
        restored = OffsetTracker(tracker.watermark, ranges)
        assert (restored.watermark, restored.finished()) == (tracker.watermark, ranges)


@given(st.permutations(range(1, 40)))
def test_every_order_of_finishing_ends_without_ranges(order: list[int]) -> None:
    tracker = OffsetTracker(1)
    for offset in order:
        tracker.finish(offset, offset + 1)
    assert tracker.watermark == 40
    assert tracker.finished() == []

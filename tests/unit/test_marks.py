"""Marks: which a checkpoint keeps."""

from __future__ import annotations

from emq.storage import marks
from emq.storage.marks import Mark, Marks


def test_a_checkpoint_knows_messages_that_were_read_long_ago_as_well_as_the_newest() -> None:
    kept = Marks()
    assert kept.saved(0.0) == ()
    for second in range(2_000):
        kept.newest = marks.of(second * 10, b"%d" % second)
        saved = kept.saved(float(second))
        assert len(saved) <= 5
        assert saved[0] == kept.newest
        assert list(saved) == sorted(saved, reverse=True)
    ages = [1_999 - mark.offset / 10 for mark in saved]
    assert any(5 <= age <= 10 for age in ages)
    assert any(300 <= age <= 610 for age in ages)


def test_marks_go_on_from_those_of_a_checkpoint() -> None:
    known = tuple(Mark(offset, f"{offset}") for offset in (50, 40, 30, 20, 10))
    kept = Marks(known)
    assert kept.newest == known[0]
    assert kept.saved(1.0)[0] == known[0]
    assert set(kept.saved(2.0)) <= set(known)
    assert len(kept.saved(3.0)) >= 3


def test_a_digest_tells_messages_apart_by_their_front_alone() -> None:
    assert marks.digest(b"a") != marks.digest(b"b")
    assert marks.digest(b"x" * 1_000) == marks.digest(b"x" * 1_000 + b"y")
    assert len(marks.digest(b"")) == marks.DIGITS

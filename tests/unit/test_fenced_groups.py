"""When a host asks again for a group that somebody outside of its cluster took."""

from __future__ import annotations

from emq.allocation.fenced_groups import FENCED_S, MAX_FENCED_S, FencedGroups
from emq.allocation.records import Entry


def test_a_host_asks_once_for_all_calls_that_were_refused_under_one_epoch() -> None:
    fenced = FencedGroups()
    assert fenced.wait("t/0", 7, 100.0) == FENCED_S
    assert [fenced.wait("t/0", 7, 100.0 + late_s) for late_s in (0.5, 1.0, 9.0)] == [FENCED_S - 0.5, FENCED_S - 1.0, 0]
    assert list(fenced.due(100.0 + FENCED_S)) == [("t/0", 7)]


def test_a_host_asks_later_each_time_that_the_group_is_taken_again() -> None:
    fenced, now, waits = FencedGroups(), 100.0, []
    for epoch in range(10):
        waits.append(fenced.wait("t/0", epoch, now))
        now += waits[-1]
        fenced.keep({"t/0": Entry(epoch + 1, "stays")})
    assert waits == [min(FENCED_S * 2**n, MAX_FENCED_S) for n in range(10)]
    assert fenced.wait("t/0", 10, now + 2 * MAX_FENCED_S) == FENCED_S

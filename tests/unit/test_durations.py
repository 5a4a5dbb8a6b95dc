"""Spans of time for people."""

from __future__ import annotations

import pytest

from emq.runtime import durations


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3.0, "0 s"),
        (0.0, "0 s"),
        (5.17e-11, "0 s"),
        (1e-6, "1 us"),
        (0.000_25, "250 us"),
        (0.001, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.9997, "1,000 ms"),
        (1.0, "1 s"),
        (3.21, "3.21 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (600.0, "10 min"),
        (7200.0, "2 h"),
        (9000.0, "2.5 h"),
        (172_800.0, "2 d"),
        (400_000.0, "4.63 d"),
        (1e9, "11,574 d"),
    ],
)
def test_a_span_is_told_in_the_unit_that_people_use(seconds: float, text: str) -> None:
    assert durations.brief(seconds) == text


def test_a_span_is_given_in_seconds_milliseconds_or_microseconds() -> None:
    assert [durations.brief(1.5), durations.brief(ms=1500), durations.brief(us=1_500_000)] == ["1.5 s"] * 3
    # Nothing is lost at the border of two units.
    assert [durations.brief(ms=1000), durations.brief(us=1000), durations.brief(us=999)] == ["1 s", "1 ms", "999 us"]

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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("90s", 90), ("15m", 900), ("12 min", 720), ("1.5h", 5400), ("3.5 h", 12_600), ("7d", 604_800)]
    + [(text, None) for text in ("", "60", "1hs", "1h30m", "-1h", "2  h", "1 month", "h")],
)
def test_a_span_is_written_in_one_unit_also_as_emq_tells_it(text: str, seconds: float | None) -> None:
    assert durations.span_s(text) == seconds


@pytest.mark.parametrize(
    ("name", "found"),
    [("ttl_s", 3600), ("EMQ_DRAIN_S", 3600), ("options.delay_levels.remind", 3600)]
    + [(name, "1h") for name in ("rate_per_s", "delay_ms", "store", "api_requests_per_s")],
)
def test_names_say_which_values_are_seconds(name: str, found: object) -> None:
    assert durations.in_seconds(name, "1h") == found

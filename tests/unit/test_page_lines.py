"""What a page shows is compared with what a command prints, whatever the hour of the run."""

from support.page_blocks import alike


def test_a_time_of_today_and_one_of_another_day_are_alike() -> None:
    assert alike("due 13:00:45 -") == alike("due 2026-12-01 00:01 -") == alike("due 2026-12-01 00:01:30 -")


def test_a_time_is_not_like_none() -> None:
    assert alike("due 13:00:45") != alike("due -")

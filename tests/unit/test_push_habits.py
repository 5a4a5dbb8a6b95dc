"""What is learned of endpoints that close idle connections."""

from __future__ import annotations

import math

from emq_push import habits
from emq_push.habits import AT_ONCE_S, KNOWN_S, Habits
from emq_push.turns import Place

PLACE: Place = ("a.example", 443, "https", None)
OTHER: Place = ("b.example", 443, "https", None)


def test_connections_are_used_for_half_of_the_time_after_which_one_was_gone() -> None:
    found = Habits()
    assert found.kept_s(PLACE, 0.0) == math.inf
    found.closed(PLACE, 2.0, 0.0)
    assert found.kept_s(OTHER, 0.0) == math.inf
    assert found.kept_s(PLACE, 1.0) == 1.0
    found.closed(PLACE, 0.9, 1.0)
    assert found.kept_s(PLACE, 1.0) == 0.45
    for idle_s in (AT_ONCE_S / 2, 0.0, -0.5):
        found.closed(PLACE, idle_s, 2.0)
        assert found.kept_s(PLACE, 2.0) < 0


def test_a_failure_is_forgotten_after_a_while() -> None:
    found = Habits()
    found.closed(PLACE, 2.0, 10.0)
    assert found.kept_s(PLACE, 10.0 + KNOWN_S) == 1.0
    assert found.kept_s(PLACE, 10.1 + KNOWN_S) == math.inf
    assert found.kept_s(PLACE, 10.0) == math.inf


def test_the_number_of_known_places_is_bounded_and_the_oldest_go_first() -> None:
    found = Habits()
    found.closed(PLACE, 2.0, 0.0)
    found.closed(OTHER, 2.0, 0.0)
    found.closed(PLACE, 2.0, 0.0)
    for port in range(habits.MOST - 1):
        found.closed(("c.example", port, "https", None), 2.0, 0.0)
    assert found.kept_s(PLACE, 0.0) == 1.0
    assert found.kept_s(OTHER, 0.0) == math.inf

"""The benchmark of pushed caps finds a request too many, by the host's seconds and by those of the endpoints."""

from __future__ import annotations

from bench.engine.pushed_caps import Cap, arrived, overshoot, stamped
from bench.support.endpoints import Arrival

SECOND = 1_700_000_000
CAPS = [Cap(frozenset(("a",)), 2), Cap(frozenset(("b",)), 1), Cap(frozenset(("a", "b")), 3)]


def arrivals(*found: tuple[str, int, float]) -> list[Arrival]:
    """Make arrivals of (tenant, second of the stamp, seconds from there to the arrival)."""
    return [
        Arrival(tenant, str(i), SECOND + second, int((SECOND + second + late_s) * 1e6))
        for i, (tenant, second, late_s) in enumerate(found)
    ]


def test_one_request_too_many_is_found_in_its_own_cap_and_in_the_shared_one() -> None:
    found = arrivals(("a", 0, 0.1), ("a", 0, 0.2), ("a", 0, 0.3), ("b", 0, 0.4))
    assert overshoot(CAPS[:1], stamped(found)) == 1
    assert overshoot(CAPS, stamped(found)) == 2


def test_a_late_arrival_exceeds_the_cap_by_arrival_only() -> None:
    found = arrivals(("b", 0, 1.01), ("b", 1, 0.5))
    assert overshoot(CAPS, stamped(found)) == 0
    assert overshoot(CAPS, arrived(found)) == 1

"""The benchmark of pushed caps finds a request too many, by the host's seconds and by those of the endpoints."""

from __future__ import annotations

from bench.engine.pushed_caps import Cap, arrived, endpoints_of, overshoot, possible, stamped, tenants_with, used
from bench.support.endpoints import Arrival

SECOND = 1_700_000_000
CAPS = [Cap(frozenset(("a",)), 2), Cap(frozenset(("b",)), 1), Cap(frozenset(("a", "b")), 3)]


def arrivals(*found: tuple[str, int, float]) -> list[Arrival]:
    """Make arrivals of (tenant, second of the stamp, seconds from there to the arrival)."""
    return [
        Arrival(tenant, str(i), SECOND + second, int((SECOND + second + late_s) * 1e6))
        for i, (tenant, second, late_s) in enumerate(found)
    ]


def test_requests_within_the_caps_are_no_overshoot() -> None:
    found = arrivals(("a", 0, 0.1), ("a", 0, 0.2), ("b", 0, 0.3), ("a", 1, 0.1))
    assert overshoot(CAPS, stamped(found)) == overshoot(CAPS, arrived(found)) == 0
    assert used(CAPS[:1], stamped(found), [(SECOND, SECOND + 2)]) == 3 / 4


def test_one_request_too_many_is_found_in_its_own_cap_and_in_the_shared_one() -> None:
    found = arrivals(("a", 0, 0.1), ("a", 0, 0.2), ("a", 0, 0.3), ("b", 0, 0.4))
    assert overshoot(CAPS[:1], stamped(found)) == 1
    assert overshoot(CAPS, stamped(found)) == 2


def test_a_shared_cap_is_exceeded_by_topics_that_each_keep_their_own() -> None:
    found = arrivals(("a", 0, 0.1), ("b", 0, 0.2))
    assert overshoot([Cap(frozenset(("a",)), 1), Cap(frozenset(("b",)), 1)], stamped(found)) == 0
    assert overshoot([Cap(frozenset(("a", "b")), 1)], stamped(found)) == 1


def test_a_late_arrival_exceeds_the_cap_by_arrival_only() -> None:
    found = arrivals(("b", 0, 1.01), ("b", 1, 0.5))
    assert overshoot(CAPS, stamped(found)) == 0
    assert overshoot(CAPS, arrived(found)) == 1


def test_every_fifth_tenant_has_endpoints_that_share_its_budget() -> None:
    made = tenants_with(dict.fromkeys(endpoints_of(6), "http://127.0.0.1/"))
    assert [topic.name for topic in made.budgets] == ["tenant-0", "tenant-5"]
    assert len(made.topics) == 2 * 4 + 4
    assert {cap.topics for cap in possible(made)} == {
        *(frozenset(f"tenant-{i}.{n}" for n in range(4)) for i in (0, 5)),
        *(frozenset((f"tenant-{i}",)) for i in (1, 2, 3, 4)),
    }

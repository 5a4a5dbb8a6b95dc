"""Why a group is where it is, in words."""

from __future__ import annotations

import pytest

from emq.allocation.plan.levelling import AIM, PlacementReason
from emq.allocation.plan.plan import plan
from emq.allocation.plan.ring import Ring
from emq.runtime import errors
from emq_cli.placement_reasons import explain, way

HOSTS = {f"host-{i}": 1.0 for i in range(10)}


def groups(count: int) -> dict[str, float]:
    return {f"t{i // 10}/{i % 10}": 10.0 for i in range(count)}


def test_a_place_is_explained_by_the_way_around_the_ring() -> None:
    quotas = groups(1_000)
    made = plan(quotas, HOSTS)
    walked = next(group for group, why in sorted(made.moved.items()) if why is PlacementReason.WALKED)
    ringed = next(group for group, why in sorted(made.moved.items()) if why is PlacementReason.RING)
    said = explain(ringed, quotas, HOSTS, made)
    assert "first on the way" in said[0]
    assert len(said) == 2
    said = explain(walked, quotas, HOSTS, made, first=10)
    assert f"is on {made.owner[walked]}" in said[0]
    assert said[-1].startswith(f"  {made.owner[walked]}: ")
    assert said[-1].endswith("its host")
    stops = way(walked, quotas, HOSTS, made, first=10)
    assert [stop.host for stop in stops] == list(Ring(HOSTS).way(walked))[: len(stops)]
    assert ["no room" in line for line in said[1:]] == [stop.with_group > AIM for stop in stops[:-1]] + [False]
    stayed = plan(quotas, HOSTS, made.owner)
    assert "was there before" in explain(walked, quotas, HOSTS, stayed)[0]


def test_a_group_that_is_not_there_or_has_no_host_is_said_to_be_so() -> None:
    quotas = groups(10)
    with pytest.raises(errors.UnknownTopic, match="'x/1'"):
        explain("x/1", quotas, HOSTS, plan(quotas, HOSTS))
    assert "has no host" in explain("t0/1", quotas, {}, plan(quotas, {}))[0]

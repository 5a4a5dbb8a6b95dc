"""When a run is over whose end is in no trail: nobody but a killed host's next owner ends it."""

from __future__ import annotations

import math

import pytest

from emq.trail.runs import CutShort
from emq_proof.owners import Owners, Ownership

KILLED = CutShort("killed", 10, 20)
OWNED = [
    Ownership("shop", group, "heir", owned_us, owned_us) for group, owned_us in ((0, 35), (0, 25), (0, 15), (1, 22))
]


@pytest.mark.parametrize(
    ("source", "place", "begun_us", "over_us"),
    [
        ("killed", "shop/0", 12, 25),
        ("killed", "shop/1", 12, 22),
        ("killed", "shop/2", 12, math.inf),
        ("another", "shop/0", 12, math.inf),
        ("killed", "shop/0", 9, math.inf),
        ("killed", "shop/0", 21, math.inf),
    ],
)
def test_a_run_of_a_killed_host_is_over_with_the_first_takeover_after_its_last_event(
    source: str, place: str, begun_us: int, over_us: float
) -> None:
    """What the host began in an earlier or later life is not over by that."""
    assert Owners(OWNED, [KILLED]).over_us(source, place, begun_us) == over_us

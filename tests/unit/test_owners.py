"""Who owned a group: two at a time are found, and only an owner that ended abruptly may have left something unsaved."""

from __future__ import annotations

import math

import pytest

from emq.trail.runs import CutShort
from emq_proof.owners import Owners, Ownership

S = 1_000_000
SLACK_US = S // 4


def owned(source: str, epoch: int, owned_s: int, last_s: int, released_s: int | None = None) -> Ownership:
    """It starts something as soon as it owns the group, and at `last_s`."""
    released_us = None if released_s is None else released_s * S
    return Ownership("shop", 0, source, epoch, owned_s * S, released_us, owned_s * S, last_s * S)


CRASHES = {
    "let go of in order, and taken by another": ([owned("a", 1, 0, 10, 11), owned("b", 2, 12, 13, 14)], [], []),
    "taken by another": ([owned("a", 1, 0, 10), owned("b", 2, 20, 30, 31)], [], [(5 * S, 20 * S)]),
    "owned still": ([owned("a", 1, 0, 10)], [], []),
    "killed": ([owned("a", 1, 0, 10)], [CutShort("a", 0, 12 * S)], [(7 * S, math.inf)]),
    "owned still, and another host is killed": ([owned("a", 1, 0, 10)], [CutShort("b", 0, 12 * S)], []),
    "owned still, and killed in a later run": ([owned("a", 1, 0, 10)], [CutShort("a", 11 * S, 12 * S)], []),
}


@pytest.mark.parametrize(("ownerships", "cut_short", "crashes"), CRASHES.values(), ids=CRASHES)
def test_only_an_owner_that_ended_abruptly_may_have_left_something_unsaved(
    ownerships: list[Ownership], cut_short: list[CutShort], crashes: list[tuple[float, float]]
) -> None:
    owners = Owners(ownerships, cut_short)
    assert list(owners.crashes("shop/0")) == crashes
    assert not owners.crashes("shop/1")


def test_two_owners_of_one_epoch_are_found_whenever_they_owned_the_group() -> None:
    owners = Owners([owned("a", 1, 0, 10, 11), owned("b", 1, 100, 110, 111)])
    assert list(owners.faults(SLACK_US)) == ["shop/0: a and b both owned the group under epoch 1"]


def test_an_owner_that_outlives_its_next_one_is_compared_with_those_after_it() -> None:
    owners = Owners([owned("a", 1, 0, 100, 100), owned("b", 2, 10, 12, 12), owned("c", 3, 50, 60, 60)])
    first, second = owners.faults(SLACK_US)
    assert "90.000 s after b had taken the group under epoch 2" in first
    assert "50.000 s after c had taken the group under epoch 3" in second

"""Python's collector rests only while many groups come, and is left as the program has set it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from emq.host.garbage_collection import MANY_GROUPS, resting


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize(("groups", "collects"), [(-1, True), (MANY_GROUPS - 1, True), (MANY_GROUPS, False)])
def test_the_collector_rests_while_many_groups_come(groups: int, collects: bool) -> None:
    with resting(groups):
        assert gc.isenabled() == collects
    assert gc.isenabled()


def test_the_collector_goes_on_after_an_error() -> None:
    with pytest.raises(KeyError), resting(MANY_GROUPS):
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_the_program_has_stopped_stays_stopped() -> None:
    gc.disable()
    with resting(MANY_GROUPS):
        assert not gc.isenabled()
    assert not gc.isenabled()

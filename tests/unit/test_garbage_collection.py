"""Python's collector rests while many groups come and takes larger steps in a host, unless the program has set it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from emq.app import App
from emq.host.garbage_collection import MANY_GROUPS, PYTHONS, THRESHOLDS, in_larger_steps, resting


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.enable()
    gc.set_threshold(*before)


@pytest.mark.parametrize(("groups", "collects"), [(-1, True), (MANY_GROUPS - 1, True), (MANY_GROUPS, False)])
def test_the_collector_rests_while_many_groups_come(groups: int, collects: bool) -> None:
    with resting(groups):
        assert gc.isenabled() == collects
    assert gc.isenabled()


def test_the_collector_goes_on_after_an_error_and_stays_stopped_if_the_program_has_stopped_it() -> None:
    with pytest.raises(KeyError), resting(MANY_GROUPS):
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    with resting(MANY_GROUPS):
        assert not gc.isenabled()
    assert not gc.isenabled()


@pytest.mark.parametrize("python", sorted(PYTHONS))
async def test_an_app_that_is_a_host_collects_in_larger_steps(python: tuple[int, int]) -> None:
    gc.set_threshold(*python)
    before = gc.get_threshold()
    async with App("memory:") as app:
        assert gc.get_threshold() == before
        async with app.running():
            assert gc.get_threshold() == (THRESHOLDS[0], *before[1:])
    assert gc.get_threshold() == before


@pytest.mark.parametrize("before", [(5_000, 10, 10), *sorted(PYTHONS)])
def test_thresholds_that_the_program_sets_before_or_meanwhile_stay(before: tuple[int, ...]) -> None:
    gc.set_threshold(*before)
    with in_larger_steps():
        assert before in PYTHONS or gc.get_threshold() == before
        gc.set_threshold(5_000, 10, 10)
    assert gc.get_threshold() == (5_000, 10, 10)

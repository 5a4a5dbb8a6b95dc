"""A database that comes back without its last second, or empty: what the product does then, and what is still found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from emq.database import Database
from emq.offsets import checkpoints
from emq.offsets.checkpoints import Checkpoint
from support.doubles import InlineDatabase
from support.simulation.plans import Event, TopicPlan
from support.simulation.run import Outcome, carry_out
from support.simulation.schedule import Schedule

LOG = {"max_attempts": 3, "backoff_s": (0.3, 0.8), "jitter": 0.0}
KEYED = TopicPlan("keyed", 24.0, 8.0, 20.0, keys=5, failing=0.2, options=LOG)
RESIZED = TopicPlan("resized", 12.0, 3.0, 10.0, sizes=(12.0, 6.0, 9.0), options=LOG)
REBORN = TopicPlan("reborn", 10.0, 3.0, 12.0, slow=0.05, sizes=(10.0, 4.0, 12.0), options=LOG)
MOVING = TopicPlan("varied", 6.0, 3.0, 5.0, keys=5, sizes=(6.0, 12.0, 3.0), options=LOG)

ALL_AT_ONCE = (
    *(Event(4.5, "resize", 0, 0.0, 0.5), Event(4.6, "resize_keyed", 0, 0.0, 0.5)),
    *(Event(4.7, "create_again", 0, 0.0, 0.1), Event(4.8, "join", 0, 0.0, 0.5)),
)
"""What operators do in the lost second."""


def shorter(at: float, pick: int = 1) -> Event:
    """Without what it was told in the 0.9 s from then on."""
    return Event(at, "database_shorter", pick, 4.0, 0.9)


def empty(at: float, pick: int = 1) -> Event:
    return Event(at, "database_empty", pick, 4.0, 0.9)


def outcome(events: Sequence[Event], *topics: TopicPlan, seed: int = 1, clocks: tuple[float, ...] = (0.0,)) -> Outcome:
    return carry_out(Schedule(seed, False, clocks, 2, topics or (KEYED,), tuple(sorted(events))))


def broken(found: Outcome) -> set[str]:
    return {violation.promise for violation in found.violations}


@pytest.mark.parametrize("pick", [0, 1], ids=["restart", "replica"])
@pytest.mark.parametrize("lost", [shorter(4.2), empty(5.1)], ids=["shorter", "empty"])
def test_whatever_operators_did_meanwhile_all_is_well_when_they_have_done_it_again(lost: Event, pick: int) -> None:
    events = (*ALL_AT_ONCE, lost._replace(pick=pick), Event(6.5, "crash", 0, 0.0, 0.5))
    found = outcome(events, KEYED, RESIZED, REBORN, MOVING)
    assert found.violations == []
    assert found.happened[lost.what] == 1
    assert found.happened["redelivered"] > 0
    assert any("orders are given again" in text for _, _, text in found.evidence.history)


def test_hosts_go_by_a_catalog_that_was_lost_and_do_not_ask_for_it_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans name the catalog that they were made of, and nothing will be so new again."""
    calls = 0
    run = InlineDatabase.run

    async def counted(self: InlineDatabase, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        assert calls < 100_000
        return await run(self, *args, **kwargs)

    monkeypatch.setattr(InlineDatabase, "run", counted)
    assert outcome((empty(5.1, 0),)).violations == []


@pytest.mark.parametrize("events", [(), (shorter(5.0),), (empty(5.0),)], ids=["nothing", "shorter", "empty"])
def test_an_epoch_that_is_given_out_twice_is_found(events: Sequence[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    real, given = Database.next_generation, list[int]()

    async def again(self: Database, environment: str, least: int = 1) -> int:
        given.append(await real(self, environment, least))
        return given[-2] if len(given) == 3 else given[-1]

    monkeypatch.setattr(Database, "next_generation", again)
    moves = (Event(7.0, "join", 0, 0.0, 0.5), Event(9.5, "join", 0, 0.0, 0.5))
    assert "O" in broken(outcome((*events, *moves)))


@pytest.mark.parametrize("events", [(), (shorter(5.0),), (empty(5.0),)], ids=["nothing", "shorter", "empty"])
def test_a_checkpoint_that_goes_back_further_than_the_database_is_found(
    events: Sequence[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checkpoints._checkpoints

    def less(rows: Iterable[Any]) -> dict[str, Checkpoint]:
        return {q: c._replace(watermark=max(0, c.watermark - 1), finished=()) for q, c in real(rows).items()}

    monkeypatch.setattr("emq.offsets.checkpoints._checkpoints", less)
    assert "M" in broken(outcome((*events, Event(12.0, "crash", 0, 0.0, 0.5))))


@pytest.mark.parametrize("lost", [shorter(4.2, 0), empty(5.1, 0)], ids=["shorter", "empty"])
@pytest.mark.parametrize("ahead_s", [-7_584.0, 7_584.0])
def test_a_host_that_starts_while_the_database_is_away_times_nothing_by_its_own_clock(
    lost: Event, ahead_s: float
) -> None:
    """The database is away from 5.1 s to 6.1 s, and the new life of a host goes by the wrong clock."""
    found = outcome((lost, Event(5.3, "rebirth", 0, 0.2, 0.5)), clocks=(0.0, 0.0, ahead_s))
    assert found.violations == []
    assert found.happened["rebirth"] == 1


@pytest.mark.parametrize("at", [4.0, 5.5], ids=["before", "meanwhile"])
def test_hosts_do_not_stand_still_where_the_time_is_lost_that_went_on_when_the_clock_was_set_back(at: float) -> None:
    set_back = Event(at, "reference_jump", 0, 0.0, 0.45)
    found = outcome((set_back, empty(5.1, 0), Event(9.0, "crash", 0, 0.0, 0.5)))
    assert found.violations == []
    assert any("reference_jump: -1080" in text for _, _, text in found.evidence.history)
    assert not any("stands still" in text for _, _, text in found.evidence.history)

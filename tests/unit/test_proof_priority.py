"""The proof of P: nothing starts while a higher priority is ready."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from emq.trail import events
from emq.trail.proof import Expectations, prove
from support.trail_story import MS, T0_US, Delivery, Story, broken, tell


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


HIGH_READY_AT_10 = Delivery("high", 30, 31, ready=10, offset=7)


def low(start: float, **changes: object) -> Delivery:
    return dataclasses.replace(Delivery("low", start, start + 1, ready=1, priority=1, offset=1), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("start", "found"), [(9, 0), (10, 0), (10.001, 1), (29.999, 1), (30, 0), (31, 0)])
def test_one_inversion_is_found(story: Story, start: float, found: int) -> None:
    proof = tell(story, [low(start), HIGH_READY_AT_10])
    assert proof.priority_inversions.count == found
    assert broken(proof) == "P" * found


def test_only_strict_topics_promise_priority(story: Story) -> None:
    tell(story, [low(20), HIGH_READY_AT_10])
    assert not prove(story.directory, Expectations(strict=["shop"])).ok
    assert prove(story.directory, Expectations(strict=["other"])).ok


def test_a_retry_that_is_ready_counts_at_its_own_priority(story: Story) -> None:
    first = Delivery("high", 2, 3, ready=1, offset=7, outcome="retried", key="k")
    second = dataclasses.replace(HIGH_READY_AT_10, attempt=2, offset=-1, key="k")
    proof = tell(story, [first, low(5), second])
    assert proof.ok, "it was not ready during its backoff"
    story = Story(story.directory / "again")
    proof = tell(story, [first, low(20), second])
    assert broken(proof) == "P", "a message does not hold itself back"


@pytest.mark.parametrize(
    ("holder_ends", "outcome", "found"),
    [(25, "settled", 0), (15, "settled", 1), (15, "retried", 0), (15, "dead", 1), (None, "", 0)],
)
def test_a_message_that_waits_for_its_key_is_excused(
    story: Story, holder_ends: float | None, outcome: str, found: int
) -> None:
    holder = Delivery("holder", 5, holder_ends, ready=4, key="k", priority=1, outcome=outcome)
    waiting = dataclasses.replace(HIGH_READY_AT_10, key="k")
    assert tell(story, [holder, low(20), waiting]).priority_inversions.count == found


def test_a_high_message_that_waits_in_the_store_while_lows_start_is_found(story: Story) -> None:
    lows = [Delivery(f"low{i}", 1000 * i, 1000 * i + 5, 1000 * i - 1, priority=1, offset=i) for i in range(12)]

    def told(name: str, ready: float, **more: Any) -> int:
        own = Story(story.directory / name)
        high = Delivery("high", ready + 1, ready + 2, ready, offset=0, **more)
        return tell(own, [*lows, high]).priority_inversions.count

    assert told("long", 10_500) == 4  # those of the seconds 6 to 9
    assert told("short", 5_900) == 0
    assert told("keyed", 10_500, key="k") == 0


def test_a_new_owner_has_time_to_read_what_has_long_waited(story: Story) -> None:
    lows = [Delivery(f"low{i}", 100 * i, 100 * i + 5, 100 * i - 1, priority=1, offset=i) for i in range(40)]
    high = Delivery("high", 4001, 4002, 4000, offset=0)
    story.trail("producer").record(events.Published(T0_US - 10**8, "shop", 0, ["high"], 0, T0_US - 10**8, [0]))
    m = high.message()
    m.published_us = T0_US - 10**8
    story.publish(*lows).deliver(*lows)
    story.trail().started(m, 1)
    story.trail().settled(m, T0_US + 4_002 * MS)
    assert story.prove().ok

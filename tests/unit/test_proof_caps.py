"""The proof of Q: nobody starts more than the quota, of a group or of its topic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from emq.runtime import errors
from emq.topics.model import Kind, Topic, TopicOptions, split
from emq.topics.shares import share_of
from emq.trail import events
from emq_proof.limits import budgets, limits
from emq_proof.proof import Expectations, prove
from support.trail_story import MS, T0_S, T0_US, Delivery, Story, broken, clean, tell


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_one_start_too_many_in_an_aligned_second_is_found(story: Story) -> None:
    extra = Delivery("extra", 999.999, 1001, 999, offset=99)
    proof = tell(story, [*clean(), extra], Expectations(still_queued=0, quotas={"shop/0": 20}))
    assert broken(proof) == "Q"
    assert proof.cap_violations.examples == (f"shop/0 started 21 in second {T0_S}, 20 allowed",)


def start_each(story: Story, places: Sequence[tuple[str, int]]) -> None:
    """Publish, start and settle a message at each topic and group, a millisecond after the other."""
    for i, (topic, group) in enumerate(places):
        m = Delivery(f"m{i}", i, 20 + i, offset=i).message()
        m.topic, m.group = topic, group
        story.trail("producer").record(events.Published(T0_US, topic, group, [m.id], 0, T0_US, [i]))
        story.trail().started(m, 1)
        story.trail().settled(m, T0_US + 30 * MS)
    story.close()


@pytest.mark.parametrize(
    ("qps", "count", "options", "found"),
    [
        (2, 4, {}, f"shop started 4 in second {T0_S}, 2 allowed"),
        (10, 14, {"pacing": "smooth"}, "shop started 14 within the second"),
    ],
)
def test_groups_that_keep_their_caps_and_exceed_the_topics_together_are_found(
    story: Story, qps: float, count: int, options: dict[str, Any], found: str
) -> None:
    topic = split(Topic("shop", qps, kind=Kind.RANGE_MERGE, slots=4, priorities=(), options=TopicOptions(**options)))
    start_each(story, [("shop", i % 4) for i in range(count)])
    quotas, bursts = limits([topic])
    proof = prove(story.directory, Expectations(still_queued=0, quotas=quotas, bursts=bursts))
    assert any(found in example for example in proof.cap_violations.examples)


def test_fractions_of_a_quota_carry_over_as_in_the_counter(story: Story) -> None:
    assert [share_of(2.5).allowance(s) for s in range(4)] == [2, 3, 2, 3]
    assert sum(share_of(0.1).allowance(T0_S + s) for s in range(10)) == 1
    deliveries = [Delivery(f"m{i}", t, t, offset=i) for i, t in enumerate((1, 2, 1000, 1001, 1002))]
    story.publish(*deliveries).deliver(*deliveries).close()
    assert prove(story.directory, Expectations(quotas={"shop/0": 2.5})).ok
    assert prove(story.directory, Expectations(quotas={"shop/0": 2})).cap_violations.count == 1


def test_a_quota_that_changed_holds_from_its_time_on(story: Story) -> None:
    deliveries = [Delivery(f"m{i}", t, t, offset=i) for i, t in enumerate((0, 1, 1000, 1001, 2000, 2001, 3000))]
    story.publish(*deliveries).deliver(*deliveries).close()

    def violations(*changes: tuple[int, float]) -> int:
        quotas = {"shop/0": [(T0_US + ms * MS, quota) for ms, quota in changes]}
        return prove(story.directory, Expectations(quotas=quotas)).cap_violations.count

    assert violations((0, 2)) == 0
    assert violations((0, 1)) == 3
    assert violations((0, 2), (1500, 1)) == 1, "second 2 has two starts; in second 1 both quotas were in force"
    assert violations((0, 1), (1500, 2)) == 1, "second 0 has two starts under the lower quota"
    assert violations((2000, 2)) == 2, "before the first quota nothing is allowed"


@pytest.mark.parametrize(
    ("ahead_ms", "skew_s", "found"), [(100, 0.25, 0), (100, 0.05, 1), (400, 0.25, 1), (0, 0.25, 0)]
)
def test_a_move_between_clocks_that_differ_is_judged_as_if_they_did_not(
    story: Story, ahead_ms: int, skew_s: float, found: int
) -> None:
    """Fifty a second on a host, and then on another one; the first one's clock is ahead."""
    first = [Delivery(f"a{i}", 20 * i + ahead_ms, 20 * i + ahead_ms + 1, offset=i) for i in range(100)]
    second = [Delivery(f"b{i}", 2000 + 20 * i, 2001 + 20 * i, offset=100 + i, source="other") for i in range(100)]
    story.publish(*first, *second).own("host", 0).own("other", 1999).deliver(*first, *second)
    quotas = {"shop/0": 50}
    story.close()
    proof = prove(story.directory, Expectations(still_queued=0, quotas=quotas, max_skew_s=skew_s))
    assert (proof.cap_violations.count, len(proof.owners.examples)) == (found, ahead_ms / 1000 > skew_s)


def test_a_burst_without_a_quota_is_refused() -> None:
    with pytest.raises(errors.InvalidSettings, match="'shop/0' but no quota"):
        Expectations(bursts={"shop/0": 2})


@pytest.mark.parametrize(("count", "found"), [(3, False), (4, True)])
def test_topics_that_keep_their_caps_and_exceed_their_budget_together_are_found(
    story: Story, count: int, found: bool
) -> None:
    """Starts of the budget's own messages count in it, and those of topics below a budget within it."""
    topics = [split(Topic("shop", qps=3, shared_s=1)), *map(_below, ("inner", "outer"), ("shop", "inner"))]
    topics[1] = msgspec.structs.replace(topics[1], shared_s=1)
    start_each(story, [(name, 0) for name in ("shop", "inner", "outer", "outer")[:count]])
    quotas, bursts = limits(topics)
    expected = Expectations(still_queued=0, quotas=quotas, bursts=bursts, budgets=budgets(topics))
    examples = (f"budget shop started {count} in second {T0_S}, 3 allowed",) if found else ()
    assert prove(story.directory, expected).cap_violations.examples == examples


def _below(name: str, budget: str) -> Topic:
    return split(Topic(name, qps=100, options=TopicOptions(budget=budget)))

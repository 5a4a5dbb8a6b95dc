"""Which priority is served next."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from emq.groups.priority import Aging, Strict, Weighted, policy_for
from emq.storage.message import Message
from emq.topics.model import Topic, TopicOptions

NOW = 1_700_000_000_000_000


def buffers(*sizes: int, published_us: int = NOW) -> list[deque[Message]]:
    return [deque(Message(str(i), b"", published_us=published_us) for i in range(n)) for n in sizes]


def test_strict_takes_the_highest_that_has_anything() -> None:
    assert Strict().choose(buffers(0, 2, 5), NOW) == 1
    assert Strict().choose(buffers(1, 2, 5), NOW) == 0
    assert Strict().choose(buffers(0, 0, 0), NOW) == -1


@pytest.mark.parametrize("weights", [(5.0, 3.0, 2.0), (1.0, 1.0, 1.0), (0.7, 0.2, 0.1)])
def test_weighted_serves_a_backlog_in_proportion_and_evenly_mixed(weights: tuple[float, ...]) -> None:
    policy = Weighted(weights)
    full = buffers(1, 1, 1)
    chosen = [policy.choose(full, NOW) for _ in range(1_000)]
    for i, weight in enumerate(weights):
        share = weight / sum(weights)
        assert chosen.count(i) == pytest.approx(1_000 * share, abs=2)
        for start in range(0, 900, 50):
            assert Counter(chosen[start : start + 100])[i] == pytest.approx(100 * share, abs=2)


def test_weighted_gives_the_share_of_an_empty_priority_to_the_others_and_keeps_no_debt() -> None:
    policy = Weighted((5.0, 3.0, 2.0))
    without_mid = [policy.choose(buffers(1, 0, 1), NOW) for _ in range(700)]
    assert Counter(without_mid) == {0: 500, 2: 200}
    again = [policy.choose(buffers(1, 1, 1), NOW) for _ in range(100)]
    assert Counter(again)[1] == pytest.approx(30, abs=2)
    assert policy.choose(buffers(0, 0, 0), NOW) == -1


def test_aging_is_strict_among_fresh_messages() -> None:
    assert Aging(30).choose(buffers(1, 1, 1), NOW) == 0
    assert Aging(30).choose(buffers(0, 0, 1), NOW) == 2


def test_aging_lifts_a_message_one_priority_for_each_step_it_waits() -> None:
    policy = Aging(30)
    mixed = buffers(1, 0, 1)
    mixed[2][0].published_us = NOW - 59_999_999
    assert policy.choose(mixed, NOW) == 0
    mixed[2][0].published_us = NOW - 60_000_000  # as high as the fresh one, and older
    assert policy.choose(mixed, NOW) == 2


def test_aging_bounds_the_wait_below_a_busy_higher_priority() -> None:
    policy = Aging(10)
    low = Message("low", b"", published_us=NOW)
    now = NOW
    for _ in range(1_000):
        now += 100_000  # ten high messages a second arrive and are served
        chosen = policy.choose([deque([Message("high", b"", published_us=now)]), deque(), deque([low])], now)
        if chosen == 2:
            break
    assert (now - NOW) / 1e6 == pytest.approx(20, abs=0.2)


def test_a_clock_of_a_producer_that_is_ahead_does_no_harm() -> None:
    assert Aging(30).choose(buffers(1, 1, published_us=NOW + 10**9), NOW) == 0


def test_a_topic_names_its_policy() -> None:
    def policy(**options: object) -> object:
        return policy_for(Topic("t", 1.0, options=TopicOptions(**options)))  # type: ignore[arg-type]

    assert isinstance(policy(), Strict)
    assert isinstance(policy(priority_policy="weighted", weights=(1.0, 1.0, 1.0)), Weighted)
    assert isinstance(policy(priority_policy="aging"), Aging)

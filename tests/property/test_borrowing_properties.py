"""Groups that borrow from each other never start more together than their quotas add up to."""

from __future__ import annotations

import dataclasses
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from emq.quota.borrowing import BorrowingCounter, Sister
from emq.quota.counter import MICRO, Counter, allowance

START = 1_700_000_000


@dataclasses.dataclass
class Group:
    counter: Counter
    buffered: int = 0
    held: int = 0
    stopping: bool = False


steps = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.one_of(
            st.tuples(st.just("reserve"), st.integers(1, 60)),
            st.tuples(st.just("release"), st.integers(1, 60)),
            st.tuples(st.just("buffered"), st.integers(0, 1)),
            st.tuples(st.just("wait"), st.sampled_from([0.01, 0.2, 0.6, 1.0])),
        ),
    ),
    max_size=80,
)


@given(st.lists(st.sampled_from([0.5, 2.5, 5.0, 20.0]), min_size=4, max_size=4), steps)
@settings(deadline=None)
def test_the_sum_over_the_sisters_stays_under_the_sum_of_their_quotas(
    quotas: list[float], play: list[tuple[int, tuple[str, float]]]
) -> None:
    family: deque[Sister] = deque()
    groups = [Group(BorrowingCounter(q, START, family)) for q in quotas]
    family.extend(groups)
    now, used = float(START), 0
    for who, (step, value) in play:
        group = groups[who]
        if step == "wait":
            if int(now + value) > int(now):
                used = 0
                for each in groups:
                    each.held = 0
            now += value
        elif step == "buffered":
            group.buffered = int(value)
        elif step == "reserve":
            granted = group.counter.reserve(int(value), now)
            assert 0 <= granted <= value
            group.held += granted
            used += granted
        elif group.held:
            back = min(group.held, int(value))
            group.counter.release(back, now)
            group.held -= back
            used -= back
        allowed = sum(allowance(round(q * MICRO), int(now)) for q in quotas)
        assert used <= (allowed if int(now) > START else 0)

"""Splitting a capacity into groups, and dealing it out again."""

from __future__ import annotations

import math
from fractions import Fraction

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from emq.topics.model import MICRO, Topic, quotas, split
from emq.topics.rules import validate

capacities = st.one_of(
    st.integers(1, 20_000).map(float),
    st.integers(1, 20_000 * MICRO).map(lambda micros: micros / MICRO),
)
group_sizes = st.one_of(st.integers(1, 150).map(float), st.floats(1, 150, allow_nan=False))


@given(capacities, group_sizes)
def test_quotas_add_up_exactly_and_none_is_above_the_groups_capacity(qps: float, group_qps: float) -> None:
    topic = split(Topic("t", qps, group_qps))
    validate(topic, None)
    shares = quotas(topic)
    micros = [round(q * MICRO) for q in shares]
    assert sum(micros) == round(qps * MICRO)
    assert [m / MICRO for m in micros] == shares
    assert len(shares) == topic.groups == topic.active_groups == math.ceil(qps / group_qps)
    assert all(q <= group_qps + 1 / MICRO for q in shares)
    assert min(shares) > 0


@given(capacities, capacities, st.integers(1, 150).map(float))
def test_a_shrunk_topic_shares_its_smaller_capacity_over_all_groups_that_still_drain(
    before: float, after: float, group_qps: float
) -> None:
    grown = split(Topic("t", before, group_qps))
    shrunk = split(msgspec.structs.replace(grown, qps=after))
    assert shrunk.groups == max(grown.groups, shrunk.active_groups)
    micros = [round(q * MICRO) for q in quotas(shrunk)]
    assert Fraction(sum(micros), MICRO) == Fraction(round(after * MICRO), MICRO)
    assert min(micros) >= 0


@given(st.integers(1, 1_000), st.integers(1, 50).map(float))
def test_whole_capacities_are_dealt_out_in_whole_starts_as_evenly_as_can_be(qps: int, group_qps: float) -> None:
    shares = quotas(split(Topic("t", float(qps), group_qps)))
    assert all(q.is_integer() for q in shares)
    assert max(shares) - min(shares) <= 1
    assert max(shares) <= group_qps

"""What bounds a judgement: caps as they changed, owners that crashed, runs that were cut short."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from emq.topics.model import Topic, TopicOptions, split
from emq.trail.runs import CutShort, SourceRun
from emq_proof.owners import Ownership
from emq_spark.audit import caps as audit_caps
from emq_spark.audit import crashes, local_rows, owners
from emq_spark.audit.caps import Cap
from emq_spark.audit.segments_read import Input

S = 1_000_000


def topic(qps: float, **options: object) -> Topic:
    return split(Topic("t", qps=qps, group_qps=50, options=TopicOptions(**options)))  # type: ignore[arg-type]


def test_of_caps_that_were_changed_the_highest_counts_for_all_groups_together() -> None:
    assert audit_caps.of_catalogs([[topic(90)], [topic(75.5)]]) == [Cap("t", -1, 90, 0, 0)]
    assert audit_caps.of_catalogs([[topic(30)], [topic(120)]]) == [Cap("t", -1, 120, 0, 0)]
    assert audit_caps.of_catalogs([[topic(30)], []]) == [Cap("t", -1, 30, 0, 0)]


def test_two_fractional_caps_of_a_topic_allow_together_what_either_does_in_a_second() -> None:
    assert audit_caps.of_catalogs([[topic(0.5)], [topic(0.8)]])[0] == Cap("t", -1, 1, 0, 0)


def test_where_the_pacing_was_changed_a_sliding_second_may_hold_two_halves_of_aligned_ones() -> None:
    caps = audit_caps.of_catalogs([[topic(50)], [topic(50, pacing="smooth")]])
    assert caps == [Cap("t", -1, 50, 0, 102)]


def _own(source: str, epoch: int, since_s: int, until_s: int, *, released: bool = False) -> Ownership:
    end = until_s * S
    return Ownership("t", 0, source, epoch, since_s * S, end if released else None, since_s * S, end)


@pytest.mark.parametrize(
    ("ended_s", "last_s", "released", "expected"),
    [(10, 11, False, [11]), (10, 60, False, [10]), (10, 60, True, [])],
    ids=["killed", "cut off", "released"],
)
def test_an_owner_that_was_superseded_without_a_release_crashed_when_it_was_last_heard_of(
    spark: SparkSession, ended_s: int, last_s: int, released: bool, expected: list[int]
) -> None:
    """One that lives on elsewhere was last heard of, in this group, when it last started something there."""
    told = [_own("a", 1, 0, ended_s, released=released), _own("b", 2, 20, 30)]
    owned = owners.beside(local_rows.frame(spark, told, owners.FIELDS), is_whole=True)
    runs = [("a", ended_s * S - 1), ("a", last_s * S), ("a", 99 * S), ("b", 99 * S)]
    rows = crashes.ownerships(owned, runs, ["a"], S // 4).collect()
    assert [(row["source"], row["ended_us"], row["until_us"]) for row in rows] == [
        ("a", end * S, 20 * S) for end in expected
    ]


def test_a_host_that_was_killed_and_came_back_under_its_name_was_cut_short_once() -> None:
    first, second = SourceRun(first_us=1, last_us=10), SourceRun(closed=True, first_us=20, last_us=90)
    found = Input(sources={"a-1": first, "a-20": second, "b-1": SourceRun(first_us=2, last_us=50)}, unclosed={"a"})
    assert found.cut_short == [CutShort("a", 1, 10)]
    assert found.lasts == [("a", 10), ("a", 90), ("b", 50)]


def test_a_budget_has_a_cap_that_its_topics_are_charged_to() -> None:
    tenant, inner = Topic("tenant", 20, shared_s=1), Topic("a", 5, options=TopicOptions(budget="tenant"), shared_s=1)
    topics = [*map(split, (tenant, inner, Topic("b", 9, options=TopicOptions(budget="a")))), topic(3)]
    caps = audit_caps.of_catalogs([topics])
    assert [cap for cap in caps if cap.group == audit_caps.BUDGET] == [
        Cap("tenant", audit_caps.BUDGET, 20, 0, 0),
        Cap("a", audit_caps.BUDGET, 5, 0, 0),
    ]
    charged = [("a", "a"), ("a", "tenant"), ("b", "a"), ("b", "tenant"), ("tenant", "tenant")]
    assert audit_caps.charges([topics, [split(Topic("b", 9))], []]) == charged

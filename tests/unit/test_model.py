"""Topics: what is refused, and how it is said."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from emq.runtime import errors
from emq.storage.names import QueueName
from emq.storage.slot_store import Keep
from emq.topics.model import Kind, Topic, TopicOptions, quotas, split
from emq.topics.rules import validate, validate_name

BAD_TOPICS: list[tuple[str, dict[str, Any]]] = [
    ("qps 0", {"qps": 0.0}),
    ("qps -3", {"qps": -3.0}),
    ("qps nan", {"qps": float("nan")}),
    ("qps inf", {"qps": float("inf")}),
    ("qps 1e-07", {"qps": 1e-7}),
    ("group_qps 151", {"group_qps": 151.0}),
    ("group_qps 0.5", {"group_qps": 0.5}),
    ("group_qps nan", {"group_qps": float("nan")}),
    ("0 priorities", {"priorities": ()}),
    ("17 priorities", {"priorities": tuple("abcdefghijklmnopq")}),
    ("repeat", {"priorities": ("a", "a")}),
    ("'a/b'", {"priorities": ("a/b",)}),
    ("''", {"priorities": ("",)}),
]

BAD_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("burst 0.5", {"burst": 0.5}),
    ("weights", {"priority_policy": "weighted", "weights": (1.0,)}),
    ("weights", {"weights": (1.0, 0.0, 2.0)}),
    ("aging_s 0", {"aging_s": 0.0}),
    ("max_in_flight 0", {"max_in_flight": 0}),
    ("max_length 0", {"max_length": 0}),
    ("max_payload 0", {"max_payload": 0}),
    ("max_attempts 0", {"max_attempts": 0}),
    ("backoff_s", {"backoff_s": ()}),
    ("backoff_s", {"backoff_s": (-1.0,)}),
    ("jitter 1.5", {"jitter": 1.5}),
    ("handler_timeout_s 0", {"handler_timeout_s": 0.0}),
    ("retention_s -1", {"retention_s": -1.0}),
]


@pytest.mark.parametrize(("named", "fields"), BAD_TOPICS)
def test_a_value_out_of_range_is_refused_in_one_line_that_names_it(named: str, fields: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidTopic, match=r"^topic 't': ") as caught:
        validate(Topic(**{"name": "t", "qps": 10.0, **fields}), None)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("named", "options"), BAD_OPTIONS)
def test_an_option_out_of_range_is_refused_in_one_line_that_names_it(named: str, options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidTopic, match=r"^topic 't': ") as caught:
        validate(Topic("t", 10.0, options=TopicOptions(**options)), None)
    assert named in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a{b", "a}b", "tab\t", "nul\0", "x" * 129, "é" * 65, "\ud800"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(errors.InvalidTopic, match="topic name"):
        validate_name(name)


@pytest.mark.parametrize("name", ["a", "x" * 128, "größe.日本", "a-b_c:d@e"])
def test_other_names_are_taken(name: str) -> None:
    validate_name(name)


def test_what_the_store_names_bounds_group_qps() -> None:
    validate(Topic("t", 10.0, 1_000.0), 1_000.0)
    with pytest.raises(errors.InvalidTopic, match="from 1 to 20"):
        validate(Topic("t", 10.0, 50.0), 20.0)


def test_priorities_are_known_by_name_and_the_middle_one_is_the_default() -> None:
    topic = Topic("t", 1.0, priorities=("a", "b", "c", "d"))
    assert [topic.priority_index(p) for p in ("a", "d", None)] == [0, 3, 2]
    with pytest.raises(errors.InvalidMessage, match="no priority 'x'; it has a, b, c, d"):
        topic.priority_index("x")


def test_the_example_of_the_paper_makes_thirty_queues() -> None:
    topic = split(Topic("sms", 500.0))
    queues = [q for g in range(topic.groups) for q in topic.queues(g)]
    assert (topic.groups, len(queues), queues[0]) == (10, 30, "sms/0/high")
    assert QueueName.parse(queues[-1]) == ("sms", 9, "low")


def test_which_score_counts_after_a_merge_follows_from_kind_and_choice() -> None:
    def keep(kind: Kind, **options: Any) -> Keep:
        return Topic("t", 1, priorities=(), kind=kind, options=TopicOptions(**options)).keep

    assert keep(Kind.RANGE_MERGE) is Keep.FIRST
    assert keep(Kind.FIXED_TIME) is Keep.LAST
    assert keep(Kind.PRIORITY) is Keep.LAST
    assert keep(Kind.PRIORITY, priority_policy="aging") is Keep.HIGHEST  # a repeat must not lose the time waited
    for chosen, meant in (
        ("first", Keep.FIRST),
        ("last", Keep.LAST),
        ("earliest", Keep.LOWEST),
        ("latest", Keep.HIGHEST),
    ):
        assert {keep(kind, keep=chosen) for kind in (Kind.RANGE_MERGE, Kind.PRIORITY, Kind.FIXED_TIME)} == {meant}


@pytest.mark.parametrize(("qps", "slots"), [(0.5, 1), (50, 1), (51, 2), (500, 16), (3200, 64)])
def test_slots_are_the_next_power_of_two_and_stay(qps: float, slots: int) -> None:
    topic = split(Topic("t", qps, priorities=(), kind=Kind.PRIORITY))
    assert (topic.slots, topic.groups, topic.active_groups) == (slots, slots, slots)
    assert sum(quotas(topic)) == pytest.approx(qps)
    less = split(msgspec.structs.replace(topic, qps=0.25))
    assert (less.slots, less.groups, less.active_groups) == (slots, slots, slots)

"""Delays by name: a topic's levels, RocketMQ's, and your own enumeration."""

from __future__ import annotations

import datetime
import enum
from typing import Any

import pytest

from emq.runtime import errors
from emq.timetable import delay_levels
from emq.topics.model import MAX_DELAY_S, Topic, TopicOptions

TOPIC = Topic("orders", 10, options=TopicOptions(delay_levels=delay_levels.ROCKETMQ))


class Delays(enum.StrEnum):
    REMINDER = "30m"
    UNKNOWN = "31m"


class Seconds(enum.IntEnum):
    SHORT = 5


class Spans(enum.Enum):
    DAY = datetime.timedelta(days=1)


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        ("1s", 1),
        ("10m", 600),
        ("2h", 7200),
        (Delays.REMINDER, 1800),
        (Seconds.SHORT, 5),
        (Spans.DAY, 86_400),
        (datetime.timedelta(milliseconds=1500), 1.5),
        (0, 0),
        (0.25, 0.25),
        (MAX_DELAY_S, MAX_DELAY_S),
    ],
)
def test_a_delay_is_a_level_a_number_a_duration_or_a_member_of_an_enumeration(
    delay: delay_levels.Delay, seconds: float
) -> None:
    assert delay_levels.delay_s(TOPIC, delay) == seconds


@pytest.mark.parametrize(
    ("delay", "said"),
    [
        ("31m", "topic 'orders' has no delay level '31m'; it has 1s, 5s, 10s, 30s, 1m,"),
        (Delays.UNKNOWN, "'31m'"),
        (-0.001, "delay -0.001 must be from 0 to 316224000 seconds"),
        (MAX_DELAY_S + 1, "must be from 0"),
        (10**400, "must be from 0"),
        (float("nan"), "delay nan must be"),
        (float("inf"), "delay inf must be"),
        (datetime.timedelta(seconds=-1), "must be from 0"),
        (True, "delay True is not a duration; give seconds"),
        (None, "delay None is no"),
        (b"30m", "is not a duration; give seconds"),
    ],
)
def test_a_delay_that_is_not_known_is_refused_in_one_line(delay: Any, said: str) -> None:
    with pytest.raises(errors.InvalidMessage) as refused:
        delay_levels.delay_s(TOPIC, delay)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_topic_without_levels_takes_spans_as_the_command_line_does() -> None:
    topic = Topic("t", 1)
    assert [delay_levels.delay_s(topic, span) for span in ("250ms", "1.5h", "7d")] == [0.25, 5_400, 604_800]
    with pytest.raises(errors.InvalidMessage, match="it has none; give a duration such as 90s, 15m, 2h, 7d"):
        delay_levels.delay_s(topic, "soon")


def test_rocketmqs_levels_are_its_eighteen() -> None:
    assert list(delay_levels.ROCKETMQ.values()) == [1, 5, 10, 30, *(60 * m for m in (*range(1, 11), 20, 30, 60, 120))]
    numbered = Topic("t", 1, options=TopicOptions(delay_levels=delay_levels.ROCKETMQ_BY_NUMBER))
    assert [delay_levels.delay_s(numbered, str(n)) for n in (1, 3, 18)] == [1, 10, 7200]


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 s"), (250, "250 ms"), (300_000, "5 m"), (5_400_000, "1 h 30 m"), (90_061_001, "1 d 1 h 1 m 1 s 1 ms")],
)
def test_spans_of_time_are_written_exactly(ms: int, text: str) -> None:
    assert delay_levels.written(ms) == text

"""What becomes of a message whose handler failed."""

from __future__ import annotations

import math
import random

import pytest

from emq.dispatch.retry import LONGEST_S, MAX_REASON, decide, describe, of_batch
from emq.runtime import errors
from emq.storage.message import Message
from emq.topics.options import DEFAULT_BACKOFF_S, TopicOptions

NOW = 1_700_000_000.0
SOME = random.Random(7)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def wait_s(options: TopicOptions, attempt: int, failure: Exception) -> float | None:
    due_ms = decide(options, attempt, failure, NOW, SOME).due_ms
    return None if due_ms is None else due_ms / 1000 - NOW


def test_waits_follow_the_schedule_and_its_last_entry_repeats() -> None:
    options = TopicOptions(backoff_s=(1.0, 5.0), jitter=0.0)
    assert [wait_s(options, n, ValueError()) for n in (1, 2, 3, 15)] == [1, 5, 5, 5]


def test_the_default_is_sixteen_attempts_over_the_customary_levels() -> None:
    options = TopicOptions(jitter=0.0)
    waits = [wait_s(options, n, ValueError()) for n in range(1, 17)]
    assert waits == [*DEFAULT_BACKOFF_S[:15], None]
    assert DEFAULT_BACKOFF_S[:4] == (10, 30, 60, 120)
    assert DEFAULT_BACKOFF_S[-2:] == (3600, 7200)


def test_jitter_only_ever_shortens_and_by_no_more_than_its_fraction() -> None:
    options = TopicOptions(backoff_s=(100.0,), jitter=0.2)
    waits = [w for _ in range(500) if (w := wait_s(options, 1, ValueError())) is not None]
    assert 80 - 0.01 <= min(waits) < 82
    assert 98 < max(waits) <= 100


def test_the_last_attempt_and_a_reject_end_in_the_dead_letters() -> None:
    assert wait_s(TopicOptions(max_attempts=3), 2, ValueError()) is not None
    assert wait_s(TopicOptions(max_attempts=3), 3, ValueError()) is None
    assert wait_s(TopicOptions(max_attempts=3), 3, errors.Retry(after_s=1)) is None
    assert wait_s(TopicOptions(), 1, errors.Reject("no")) is None


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (errors.Retry("busy"), "busy"),
        (errors.Reject("unknown customer"), "unknown customer"),
        (ValueError("two\nlines  here"), "ValueError: two lines here"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("x" * 10_000), "ValueError: " + "x" * (MAX_REASON - 12)),
        (ValueError("né \U0001f600"), "ValueError: né \U0001f600"),
        (ValueError("a\x00b \udc80"), "ValueError: a\\x00b \\udc80"),
        (ValueError("\x00" * 10_000), ("ValueError: " + "\\x00" * MAX_REASON)[:MAX_REASON]),
        (errors.Retry(None), "None"),  # type: ignore[arg-type]
        (Unspeakable(), "Unspeakable"),
    ],
)
def test_a_reason_is_one_bounded_line(failure: Exception, reason: str) -> None:
    assert describe(failure) == reason


@pytest.mark.parametrize(
    ("asked_s", "waits_s"),
    [(math.inf, LONGEST_S), (1e300, LONGEST_S), (-1.0, 0), (-math.inf, 0), (0.0, 0), (0.25, 0.25), (3600.0, 3600)],
)
def test_what_the_handler_asks_for_is_taken_as_it_is_and_bounded(asked_s: float, waits_s: float) -> None:
    assert wait_s(TopicOptions(jitter=1.0), 1, errors.Retry(after_s=asked_s)) == pytest.approx(waits_s, abs=0.001)


def test_what_is_no_number_means_the_schedule() -> None:
    options = TopicOptions(backoff_s=(5.0,), jitter=0.0)
    assert [wait_s(options, 1, errors.Retry("later", after_s=asked_s)) for asked_s in (math.nan, None)] == [5, 5]
    with pytest.raises(ValueError, match="soon"):
        errors.Retry(after_s="soon")  # type: ignore[arg-type]


def test_a_wait_that_is_asked_for_at_least_never_shortens_the_schedule() -> None:
    options = TopicOptions(backoff_s=(5.0,), jitter=0.0)
    for asked_s, waited_s in ((0, 5), (1, 5), (7, 7)):
        assert wait_s(options, 1, errors.Retry("later", after_s=asked_s, at_least=True)) == pytest.approx(waited_s)


def test_a_message_whose_identity_another_one_has_as_its_id_does_not_succeed_in_its_place() -> None:
    batch = [Message("a#0123456789abc", b""), Message("a#0123456789abc#0123456789abd", b""), Message("b", b"")]
    unfit = errors.Reject("its payload does not fit")
    failures = of_batch(errors.PartialFailure({batch[0].uid: unfit}), batch)
    assert failures == {batch[0].uid: unfit, batch[1].uid: unfit}
    assert of_batch(errors.PartialFailure({"a": unfit}), batch) == {batch[0].uid: unfit}

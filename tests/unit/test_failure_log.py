"""Failed deliveries are seen in the log, with their facts, and a flood of them is bounded and counted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emq.dispatch import error_kinds, failure_log
from emq.groups.owned import OwnedGroup
from emq.runtime import errors
from emq.storage.message import Message
from emq.topics.model import Topic, TopicOptions
from emq_stores.memory import MemoryStore, World
from support.counted_settler import CountedSettler
from support.owned_groups import owned_group
from support.recorded_events import RecordedEvents
from support.rig import Rig, Seen
from support.virtual import LoopClock, virtual
from support.waiting import until

pytestmark = virtual


class Records(logging.Handler):
    """What was logged; `lines` are those about one delivery each."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Any] = []  # records with our `extra` as attributes

    def emit(self, record: logging.LogRecord) -> None:
        record.getMessage()  # every line must be writable
        self.all.append(record)

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.all]

    @property
    def lines(self) -> list[Any]:
        return [record for record in self.all if hasattr(record, "message_id")]

    @property
    def left_out(self) -> int:
        return sum(record.left_out for record in self.all if hasattr(record, "left_out"))

    @property
    def tracebacks(self) -> list[Any]:
        return [record for record in self.all if record.exc_info]


@pytest.fixture
def logged() -> Iterator[Records]:
    records, logger = Records(), logging.getLogger("emq.dispatch.failure_log")
    logger.addHandler(records)
    logger.propagate = False
    yield records
    logger.removeHandler(records)
    logger.propagate = True


class Bench:
    def __init__(self) -> None:
        self.clock = LoopClock()
        store = MemoryStore(World(self.clock))
        self.events = RecordedEvents()
        self.settler = CountedSettler(store, self.clock, self.events)
        self.options = TopicOptions(max_attempts=3, backoff_s=(5.0,), jitter=0.0)
        self.groups: dict[str, OwnedGroup] = {}

    def group(self, name: str) -> OwnedGroup:
        if name not in self.groups:
            self.groups[name] = owned_group(Topic(name, 10, priorities=("p",), options=self.options))
        return self.groups[name]

    def fails(
        self, failure: BaseException, topic: str = "orders", id_: str = "m1", attempt: int = 1, **more: Any
    ) -> None:
        m = Message(id_, b"x", offset=1, attempt=attempt, started_us=self.clock.now_us(), **more)
        self.settler.failed(self.group(topic), m, failure)


@pytest.fixture
async def b() -> Bench:
    return Bench()


def raised(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as exc:
        return exc
    raise AssertionError("nothing was raised")


def division() -> BaseException:
    return raised(lambda: 1 / 0)


def look_up() -> BaseException:
    return raised(lambda: {}["nothing"])


# ----------------------------------------------------------------------------------------------------- what a line says


async def test_a_failed_delivery_says_what_failed_why_and_when_it_is_tried_again(b: Bench, logged: Records) -> None:
    b.fails(division(), attempt=2)
    [line] = logged.all
    assert line.levelno == logging.WARNING
    facts = ("topic", "group", "message_id", "attempt", "reason", "outcome", "retry_in_s")
    assert [getattr(line, fact) for fact in facts] == [
        *("orders", "orders/0", "m1", 2, "ZeroDivisionError: division by zero", "retry", 5.0)
    ]
    assert line.retry_at.endswith("+00:00")


@pytest.mark.parametrize(
    ("failure", "attempt", "told", "said"),
    [
        (ValueError("no"), 2, None, "failed, attempt 2 of 3: ValueError: no; tried again in 5 s"),
        (KeyError("x"), 3, None, "attempt 3 of 3: KeyError: 'x'; it is a dead letter now, after its last attempt"),
        (errors.Reject("no"), 1, None, "attempt 1 of 3: no; it is a dead letter now, since the handler rejected it"),
        (errors.Retry("busy", after_s=0), 1, None, "busy; tried again at once"),
        (errors.Retry("busy", after_s=90), 1, None, "busy; tried again in 90 s"),
        # Of a layer that counts attempts itself.
        (ValueError("no"), 2, (1, 2), "failed, attempt 1 of 2: ValueError: no; tried again in 5 s"),
        (errors.Reject("no"), 2, (2, 2), "attempt 2 of 2: no; it is a dead letter now, after its last attempt"),
        (errors.Retry("closed", after_s=60), 2, (0,), "was not tried: closed; tried again in 60 s"),
    ],
)
async def test_a_line_says_what_follows(
    b: Bench, logged: Records, failure: Exception, attempt: int, told: tuple[int, ...] | None, said: str
) -> None:
    if told is not None:
        errors.tell_attempt(failure, *told)
    b.fails(failure, attempt=attempt)
    assert logged.texts[0].startswith("topic orders: message m1 ")
    assert logged.texts[0].endswith(said)
    [line] = logged.all
    assert line.outcome == ("dead" if "dead letter" in said else "retry")
    assert line.attempt == (attempt if told is None else told[0])


async def test_a_message_that_expires_before_its_next_attempt_is_told_of(b: Bench, logged: Records) -> None:
    b.fails(errors.Retry("busy"), expires_us=b.clock.now_us() + 2_000_000)
    assert logged.texts[0].endswith("busy; it expires in 2 s, before another attempt")


async def test_messages_that_expired_or_are_damaged_or_spoiled_are_told_once_dead(b: Bench, logged: Records) -> None:
    task = asyncio.create_task(b.settler.settle())
    b.settler.expired(b.group("orders"), Message("late", b"x", offset=1))
    b.settler.damaged(b.group("orders"), Message("orders/0/0@2", b"\xc1junk", offset=2), "its stored record is damaged")
    b.fails(ValueError("no"), headers={"x": object()})
    await b.settler.idle()
    task.cancel()
    assert [text for text in logged.texts if "dead letter" in text] == [
        "topic orders: message late is a dead letter now: expired",
        "topic orders: message orders/0/0@2 is a dead letter now: its stored record is damaged",
        "topic orders: message m1 is a dead letter now: the handler set headers to a value that cannot be stored; "
        "it failed with: ValueError: no",
    ]


async def test_an_id_with_control_characters_is_escaped(logged: Records) -> None:
    Bench().fails(division(), id_="\x1b[2Jgone\n2026 forged line")
    assert logged.texts[0].isprintable()
    assert r"'\x1b[2Jgone\n2026 forged line'" in logged.texts[0]


# ----------------------------------------------------------------------------------------------------------- tracebacks


async def test_the_traceback_of_a_kind_is_shown_once_a_minute_with_a_count(b: Bench, logged: Records) -> None:
    for second in range(120):
        b.fails(division(), topic=f"t{second}")
        await asyncio.sleep(1)
    assert len(logged.lines) == 120, "the lines are there all the same"
    assert [logged.lines.index(shown) for shown in logged.tracebacks] == [0, 60]
    first, second = logged.tracebacks
    assert first.exc_info[0] is ZeroDivisionError
    assert second.getMessage().endswith("(59 more like this since the last traceback)")
    assert "more like this" not in first.getMessage()


async def test_kinds_differ_by_class_and_place_and_not_by_text_or_topic(b: Bench, logged: Records) -> None:

    def wrong(n: int) -> None:
        raise ValueError(f"order {n}")

    for n in range(5):
        b.fails(raised(lambda n=n: wrong(n)), topic=f"t{n}")  # type: ignore[misc]
        b.fails(look_up())
    assert [shown.exc_info[0] for shown in logged.tracebacks] == [ValueError, KeyError]


async def test_retry_and_reject_have_a_traceback_only_if_an_error_caused_them(b: Bench, logged: Records) -> None:
    def later() -> None:
        try:
            print(1 / 0)  # noqa: T201
        except ZeroDivisionError as exc:
            raise errors.Retry("not now") from exc

    b.fails(errors.Retry("HTTP 500"))
    b.fails(errors.Reject("gone"))
    assert not logged.tracebacks
    b.fails(raised(later))
    assert len(logged.tracebacks) == 1


def test_a_cause_and_the_members_of_a_group_decide_on_the_kind() -> None:
    def of(cause: BaseException) -> BaseException:
        def wrap() -> None:
            raise RuntimeError("wrapped") from cause

        return raised(wrap)

    def group(*found: Exception) -> BaseException:
        def together() -> None:
            raise ExceptionGroup("all", found)

        return raised(together)

    kind = error_kinds.kind_of
    assert kind(of(division())) == kind(of(division())) != kind(of(look_up()))
    assert kind(group(ValueError())) == kind(group(ValueError())) != kind(group(KeyError()))


def test_no_more_than_the_beginning_of_a_deep_recursion_is_looked_at() -> None:
    def down(n: int) -> None:
        if n == 0:
            raise ValueError("deep down")
        down(n - 1)

    deep = [error_kinds.kind_of(raised(lambda n=n: down(n))) for n in (50, 300)]  # type: ignore[misc]
    assert deep[0] == deep[1]
    assert deep[0] != error_kinds.kind_of(raised(lambda: down(2)))


def test_the_memory_of_kinds_is_bounded_and_forgets_the_oldest() -> None:
    kinds = error_kinds.ErrorKinds()
    assert all(kinds.show(kind, 0.0) == 0 for kind in range(3 * error_kinds.KINDS))
    assert len(kinds) == error_kinds.KINDS
    assert kinds.show(3 * error_kinds.KINDS - 1, 1.0) is None
    assert kinds.show(0, 1.0) == 0, "forgotten, so shown again"


def test_a_clock_that_went_back_hides_no_kind_for_long() -> None:
    kinds = error_kinds.ErrorKinds()
    assert kinds.show(1, 1_000_000.0) == 0
    assert kinds.show(1, 10.0) == 0


async def test_a_new_kind_is_shown_though_its_topic_is_in_a_flood(b: Bench, logged: Records) -> None:
    for _ in range(1_000):
        b.fails(division())
    b.fails(look_up(), id_="new")
    assert [shown.message_id for shown in logged.tracebacks] == ["m1", "new"]


async def test_ever_new_kinds_do_not_flood_the_log_with_tracebacks(b: Bench, logged: Records) -> None:
    for n in range(1_000):
        b.fails(type(f"E{n}", (Exception,), {})("new"))
    assert len(logged.tracebacks) == failure_log.TRACEBACKS


# --------------------------------------------------------------------------------------------------------------- floods


async def test_a_flood_of_one_topic_gets_a_few_lines_and_an_exact_count(b: Bench, logged: Records) -> None:
    for _ in range(20):
        for _ in range(5_000):
            b.fails(errors.Retry("HTTP 500"))
        await asyncio.sleep(0.5)
    b.fails(errors.Retry("HTTP 503"), topic="quiet", id_="q")
    assert len([line for line in logged.lines if line.topic == "orders"]) == failure_log.TOPIC_LINES
    assert [line.message_id for line in logged.lines if line.topic == "quiet"] == ["q"]
    await asyncio.sleep(failure_log.WINDOW_S)
    left = 100_000 - failure_log.TOPIC_LINES
    assert logged.left_out == left
    assert f"left out the lines of {left:,} more failed deliveries in the last 10 s: {left:,} of topic orders" in (
        logged.texts
    )


async def test_a_few_topics_in_a_flood_hide_no_other_of_the_same_second(b: Bench, logged: Records) -> None:
    for name in ["flood 1", "flood 2", "flood 3"] * 1_000:
        b.fails(errors.Retry("HTTP 500"), topic=name)
    b.fails(errors.Retry("HTTP 503"), topic="quiet", id_="q")
    assert [line.message_id for line in logged.lines if line.topic == "quiet"] == ["q"]


async def test_ten_thousand_failing_topics_get_bounded_lines_in_each_second_and_none_is_uncounted(
    b: Bench, logged: Records
) -> None:
    lines: Counter[int] = Counter()
    for second in range(12):
        before = len(logged.all)
        for n in range(10_000):
            b.fails(errors.Retry("HTTP 500"), topic=f"t{n}")
        lines[second] = len(logged.all) - before
        assert len(b.settler.failures._left_out) <= failure_log.TOPICS
        assert len(b.settler.failures._lines) <= failure_log.LINES * (failure_log.WINDOW_S + 1)
        await asyncio.sleep(1)
    b.settler.failures.close()
    assert max(lines.values()) <= failure_log.LINES + 1, "with the line about those that were left out"
    assert len(logged.lines) + logged.left_out == 120_000
    assert all(len(line.getMessage()) < 300 for line in logged.all)


async def test_the_lines_come_back_and_nothing_is_timed_without_failures(b: Bench, logged: Records) -> None:
    for _ in range(3):
        for _ in range(50):
            b.fails(errors.Retry("HTTP 500"))
        await asyncio.sleep(failure_log.WINDOW_S + 1)
    assert len(logged.lines) == 3 * failure_log.TOPIC_LINES
    assert logged.left_out == 3 * 40
    assert b.settler.failures._window is None


async def test_a_host_that_stops_says_what_it_left_out(b: Bench, logged: Records) -> None:
    for _ in range(50):
        b.fails(errors.Retry("HTTP 500"))
    b.settler.failures.close()
    b.settler.failures.close()
    assert logged.left_out == 40


async def test_a_host_stopped_in_the_middle_of_a_flood_has_told_of_every_failure(r: Rig, logged: Records) -> None:
    async def fail(m: Message) -> None:
        raise errors.Retry("HTTP 500", after_s=100)

    await r.topic("orders", 1_000)
    await r.producer.publish_many("orders", [b"x"] * 200)
    async with r.consuming(Seen(fail)) as host:
        await until(lambda: host.work.endings.failed == 200)
    assert logged.left_out > 0
    assert len(logged.lines) + logged.left_out == 200


# --------------------------------------------------------------------------------------------------- the user's logging


async def test_a_filter_that_breaks_decides_on_no_message(logged: Records) -> None:
    class Broken(logging.Filter):
        calls = 0

        def filter(self, record: logging.LogRecord) -> bool:
            Broken.calls += 1
            raise RuntimeError("the filter is broken")

    b, broken = Bench(), Broken()
    failure_log.log.addFilter(broken)
    task = asyncio.create_task(b.settler.settle())
    try:
        b.fails(division())
        b.settler.expired(b.group("orders"), Message("late", b"x", offset=1))
        await b.settler.idle()
    finally:
        failure_log.log.removeFilter(broken)
        task.cancel()
    assert Broken.calls == 2
    assert (b.settler.retried, b.settler.dead) == (1, 1)
    assert sorted(b.events.settles) == ["late", "m1"]


async def test_nothing_is_counted_for_a_log_that_is_off(b: Bench, logged: Records) -> None:
    failure_log.log.setLevel(logging.ERROR)
    try:
        b.fails(division())
    finally:
        failure_log.log.setLevel(logging.NOTSET)
    assert not logged.all
    assert b.settler.failures._window is None

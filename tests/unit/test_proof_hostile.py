"""Faults and oddities that a hostile reader planted in trails: the proof finds the first and condemns no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_trail import CONTENT, T0_S, Told, at

from emq.model import Kind, Topic, TopicOptions, split
from emq.shares import Division
from emq.trail import events
from emq.trail.limits import limits
from emq.trail.proof import Expectations, Proof, prove

Planter = Callable[[Told], Any]
VOID = "void"


def verdict(proof: Proof) -> str:
    """The letters of what is broken, or `void`; empty if all is proved."""
    return "".join(p for p, held in proof.promises.items() if not held) or (VOID if proof.void_reasons else "")


# ------------------------------------------------------------------------------------------------------------- faults


def own_ids_with_a_tilde_and_one_is_lost(t: Told) -> None:
    t.own()
    t.publish("order")
    t.publish("order~1", offset=1)
    start = t.start("order~1", 10, 1)
    t.end(start, 20, events.RETRIED, due_ms=at(30) // 1000)
    t.deliver("order~1", 40, -1, attempt=2)


def own_ids_with_a_tilde_run_at_one_time(t: Told) -> None:
    t.own()
    t.message("order~1", 10, took=20, key="k")
    t.message("order~2", 20, 1, took=20, key="k")


def published_twice_by_the_record_and_settled_after_a_move(t: Told) -> None:
    t.own()
    t.publish("a")
    t.publish("a", published_us=at(-5))
    t.deliver("a", 10)
    t.release(100)
    t.own(200, "next", 2)
    t.deliver("a", 300, source="next", epoch=2)


def one_owner_reads_an_offset_again(t: Told) -> None:
    t.own()
    t.message("a", 10)
    t.start("a", 500)


def settled_and_started_again_after_a_clean_move(t: Told) -> None:
    t.own()
    t.message("a", 10)
    t.release(100)
    t.own(500, "next", 2)
    start = t.start("a", 600, source="next", epoch=2)
    t.end(start, 610, events.RETRIED, due_ms=at(620) // 1000)


def recalled_and_delivered(t: Told) -> None:
    t.own()
    t.publish("a", offset=None, due_ms=at(5000) // 1000)
    t.add(events.RECALLED, 100, "cli", priority=0, id="a")
    t.deliver("a", 5000, -1)


def replayed_and_never_dead(t: Told) -> None:
    t.own()
    t.publish("a")
    start = t.start("a", 10)
    t.end(start, 20, events.RETRIED, due_ms=at(30) // 1000)
    t.add(events.REPLAYED, 400, "cli", priority=0, id="a")
    t.deliver("a", 800, -1)


def replayed_twice_for_one_death(t: Told) -> None:
    t.own()
    t.publish("a")
    t.end(t.start("a", 10), 20, events.DEAD, reason=f"{events.REJECTED}no")
    for ms in (400, 800):
        t.add(events.REPLAYED, ms, "cli", priority=0, id="a")
    t.end(t.start("a", 1200, -1), 1210, events.DEAD, reason=f"{events.REJECTED}no")
    t.end(t.start("a", 2000, -1, attempt=2), 2010, events.DEAD, reason=f"{events.REJECTED}no")


def a_failure_that_is_not_counted(t: Told) -> None:
    t.own()
    t.publish("a")
    t.end(t.start("a", 10), 20, events.RETRIED, due_ms=at(30) // 1000)
    t.deliver("a", 40, -1, attempt=1)


def put_back_after_its_last_attempt(t: Told) -> None:
    t.own()
    t.publish("a")
    t.end(t.start("a", 10), 20, events.RETRIED, due_ms=at(30) // 1000)
    t.end(t.start("a", 40, -1, attempt=2), 50, events.RETRIED, due_ms=at(60) // 1000)
    t.end(t.start("a", 70, -1, attempt=3), 80, events.RETRIED, due_ms=at(90) // 1000)


def a_high_one_is_never_started(t: Told) -> None:
    t.own()
    t.publish("high")
    for i in range(20):
        t.message(f"low{i}", 1000 * i, i, priority=1)


def a_key_s_first_is_never_started(t: Told) -> None:
    t.own()
    t.publish("first", key="k")
    for i in (1, 2):
        t.message(f"m{i}", 1000 * i, i, key="k")


def started_without_its_key(t: Told) -> None:
    t.own()
    for i in (0, 1):
        t.publish(f"m{i}", offset=i, key="k")
        t.deliver(f"m{i}", 10 + 5 * i, i, took=10)


def a_content_started_before_it_is_due(t: Told) -> None:
    t.own()
    t.publish(CONTENT, offset=None, due_ms=at(2000) // 1000)
    t.deliver(CONTENT, 1000, -1, published_us=None)


def a_content_s_second_time_comes_too_early(t: Told) -> None:
    t.own()
    t.publish(CONTENT, offset=None, due_ms=at(100) // 1000)
    t.deliver(CONTENT, 110, -1, published_us=None)
    t.publish(CONTENT, 1000, offset=None, due_ms=at(9000) // 1000)
    t.deliver(CONTENT, 3000, -1, published_us=None)


def a_content_started_after_it_expired(t: Told) -> None:
    t.own()
    t.publish(CONTENT, offset=None)
    t.deliver(CONTENT, 1000, -1, published_us=None, until=at(900))


def a_content_expired_too_early(t: Told) -> None:
    t.own()
    t.publish(CONTENT, offset=None)
    t.add(events.DEAD, 1000, id=CONTENT, offset=-1, priority=0, attempt=1, reason=events.EXPIRED, until=at(5000))


def a_content_merged_and_lost(t: Told) -> None:
    t.own()
    t.publish(CONTENT, offset=None)
    t.deliver(CONTENT, 100, -1, published_us=None)
    t.add(events.MERGED, 2000, "producer", id=CONTENT, published_us=at(2000))


def dropped_before_it_was_there(t: Told) -> None:
    t.own()
    t.publish("a", 5000, offset=3)
    t.add(events.DROPPED, 100, priority=0, offset=0, until=10, reason="max_length")


def expired_without_a_time_to_live(t: Told) -> None:
    t.own()
    t.publish("a")
    t.add(events.DEAD, 1000, id="a", offset=0, priority=0, attempt=1, reason=events.EXPIRED)


def a_clock_that_is_a_minute_behind(t: Told) -> None:
    t.own(-70_000)
    t.message("a", -60_000)


def one_lost_and_one_settled_twice(t: Told) -> None:
    """The sum of settles is right."""
    t.own()
    t.publish("a")
    t.message("b", 10, 1)
    t.release(100)
    t.own(200, "next", 2)
    t.deliver("b", 300, 1, source="next", epoch=2)


def ends_of_two_attempts_changed_hands(t: Told) -> None:
    """As many ends as starts, of as many attempts."""
    t.own()
    t.publish("a")
    t.publish("b", offset=1)
    t.end(t.start("a", 10), 20, events.RETRIED, due_ms=at(30) // 1000)
    t.end(t.start("a", 40, -1, attempt=2), 50, attempt=1)
    t.end(t.start("b", 60, 1), 70, attempt=2)


def the_asked_for_pause_is_not_kept(t: Told) -> None:
    t.own()
    t.publish("a")
    t.end(t.start("a", 10), 20, events.RETRIED, due_ms=at(60_020) // 1000)
    t.deliver("a", 30_000, -1, attempt=2)


def two_hosts_start_a_smooth_second_each(t: Told) -> None:
    for i, source in enumerate(("host", "next")):
        t.own(-10 + i, source, i + 1)
        for n in range(10):
            t.message(f"m{i}-{n}", 100 * n + 10, 10 * i + n, source=source, epoch=i + 1)


def three_hosts_start_a_second_each(t: Told) -> None:
    for i, source in enumerate(("host", "next", "third")):
        t.own(-10 + i, source, i + 1)
        for n in range(30):
            t.message(f"m{i}-{n}", 100 * n + i, 30 * i + n, source=source, epoch=i + 1)


def a_weighted_topic_runs_two_of_a_key(t: Told) -> None:
    t.own()
    t.message("low", 10, took=20, key="k", priority=1)
    t.message("high", 20, 0, key="k", priority=0)


def a_replay_overlaps_its_key(t: Told) -> None:
    t.own()
    t.publish("a", key="k")
    t.end(t.start("a", 10, key="k"), 20, events.DEAD, reason=f"{events.REJECTED}no")
    t.publish("b", offset=1, key="k")
    t.deliver("b", 500, 1, took=500, key="k")
    t.add(events.REPLAYED, 600, "cli", priority=0, id="a")
    t.deliver("a", 700, -1, key="k")


def one_of_a_batch_is_ended_by_none(t: Told) -> None:
    t.own()
    for i in range(5):
        t.publish(f"m{i}", offset=i)
        start = t.start(f"m{i}", 10, i)
        if i != 3:
            t.end(start, 20)
    t.deliver("m3", 2000, 3, attempt=2)


FAULTS: tuple[tuple[Planter, str, dict[str, Any]], ...] = (
    (own_ids_with_a_tilde_and_one_is_lost, "L", {}),
    (own_ids_with_a_tilde_run_at_one_time, "K", {}),
    (published_twice_by_the_record_and_settled_after_a_move, "D", {}),
    (one_owner_reads_an_offset_again, "DM", {}),
    (settled_and_started_again_after_a_clean_move, "D", {}),
    (recalled_and_delivered, "D", {}),
    (replayed_and_never_dead, "X", {}),
    (replayed_twice_for_one_death, "X", {}),
    (a_failure_that_is_not_counted, "X", {}),
    (put_back_after_its_last_attempt, "X", {"max_attempts": {"shop": 3}, "still_queued": ["a"]}),
    (a_high_one_is_never_started, "P", {"still_queued": ["high"]}),
    (a_key_s_first_is_never_started, "K", {"still_queued": ["first"]}),
    (started_without_its_key, "K", {}),
    (a_content_started_before_it_is_due, "T", {}),
    (a_content_s_second_time_comes_too_early, "T", {}),
    (a_content_started_after_it_expired, "T", {}),
    (a_content_expired_too_early, "T", {}),
    (a_content_merged_and_lost, "L", {}),
    (dropped_before_it_was_there, "L", {}),
    (expired_without_a_time_to_live, "T", {}),
    (a_clock_that_is_a_minute_behind, VOID, {}),
    (one_lost_and_one_settled_twice, "LD", {}),
    (ends_of_two_attempts_changed_hands, "D", {}),
    (the_asked_for_pause_is_not_kept, "T", {}),
    (two_hosts_start_a_smooth_second_each, "QO", {"quotas": {"shop/0": 10}, "bursts": {"shop/0": 2}}),
    (three_hosts_start_a_second_each, "QO", {"quotas": {"shop/0": 10}}),
    (a_weighted_topic_runs_two_of_a_key, "K", {"strict": ()}),
    (a_replay_overlaps_its_key, "K", {}),
    (one_of_a_batch_is_ended_by_none, "X", {}),
)


@pytest.mark.parametrize(("plant", "expected", "given"), FAULTS, ids=[plant.__name__ for plant, *_ in FAULTS])
def test_a_hostile_fault_is_found(tmp_path: Path, plant: Planter, expected: str, given: dict[str, Any]) -> None:
    told = Told()
    plant(told)
    told.write(tmp_path)
    proof = prove(tmp_path, Expectations(**{"still_queued": (), **given}))
    assert verdict(proof) == expected, proof


# ------------------------------------------------------------------------------------------------------------- lawful


def a_content_of_unknown_outcome_was_published(t: Told) -> None:
    t.own()
    t.publish(CONTENT, offset=None)
    t.deliver(CONTENT, 100, -1, published_us=None)
    t.add(events.DOUBTED, 1000, "producer", id=CONTENT, priority=0)
    t.deliver(CONTENT, 1500, -1, published_us=None)


def a_publish_of_unknown_outcome_is_repeated(t: Told) -> None:
    t.own()
    t.add(events.DOUBTED, -50, "producer", id="a", priority=0)
    t.publish("a", offset=1)
    t.deliver("a", 10, 0)
    t.deliver("a", 20, 1)


def a_key_s_next_starts_on_a_host_whose_clock_is_behind(t: Told) -> None:
    t.own()
    t.message("a", 100, took=100, key="k")
    t.release(210)
    t.own(60, "next", 2)
    t.message("b", 90, 1, key="k", source="next", epoch=2)


def a_key_goes_on_at_a_clock_that_is_ahead_and_comes_back(t: Told) -> None:
    t.own()
    t.message("a", 300, 5, key="k")
    t.release(310)
    t.own(120, "next", 2)
    t.message("b", 200, 6, key="k", source="next", epoch=2)


def a_retry_is_made_by_a_clock_that_is_behind(t: Told) -> None:
    t.own()
    t.publish("a")
    t.end(t.start("a", 180), 200, events.RETRIED, due_ms=at(200) // 1000)
    t.release(201)
    t.own(50, "next", 2)
    t.deliver("a", 60, -1, attempt=2, source="next", epoch=2)


def a_replay_is_recorded_by_a_clock_that_is_behind(t: Told) -> None:
    t.own()
    t.publish("a")
    t.end(t.start("a", 180), 200, events.DEAD, reason=f"{events.REJECTED}no")
    t.add(events.REPLAYED, 100, "cli", priority=0, id="a")
    t.deliver("a", 400, -1)


def a_smooth_group_moves_to_a_clock_that_is_behind(t: Told) -> None:
    t.own()
    for n in range(20):
        t.message(f"a{n}", 100 * n, n)
    t.release(1950)
    t.own(1750, "next", 2)
    for n in range(20):
        t.message(f"b{n}", 1760 + 100 * n, 20 + n, source="next", epoch=2)


def a_group_moves_twice_between_three_clocks(t: Told) -> None:
    """Fifty a second, a second on each host; the first one's clock is ahead, the last one's behind."""
    for i, (source, ahead_ms) in enumerate((("host", 120), ("next", 0), ("third", -120))):
        t.own(1000 * i - 5 + ahead_ms, source, i + 1)
        for n in range(50):
            ms = 1000 * i + 19 * n + ahead_ms
            t.message(f"m{i}-{n}", ms, 50 * i + n, source=source, epoch=i + 1, took=0.1)
        t.release(1000 * i + 990 + ahead_ms, source, i + 1)


def a_content_is_published_by_a_clock_that_is_ahead(t: Told) -> None:
    t.own()
    for ms in (0, 1000):
        t.publish(CONTENT, ms + 200, offset=None)
        t.deliver(CONTENT, ms + 60, -1, published_us=None)


def what_a_store_lost_is_read_again_and_dies(t: Told) -> None:
    t.own()
    t.publish("a")
    t.deliver("a", 10)
    t.release(90)
    t.own(100, "next", 2)
    t.add(events.LOST, 110, "next", priority=0, offset=0, until=1)
    start = t.start("a", 500, source="next", epoch=2)
    t.end(start, 510, events.DEAD, reason=f"{events.REJECTED}no")


def a_keyed_message_has_two_copies_after_a_crash(t: Told) -> None:
    """Its failure was not saved: it runs from its queue, and its copy in the lane waits for its key meanwhile."""
    t.own()
    t.publish("a", key="k")
    t.end(t.start("a", 10, key="k"), 20, events.RETRIED, due_ms=at(30) // 1000, key="k")
    t.own(1000, "next", 2)
    next_ = {"source": "next", "epoch": 2}
    t.deliver("a", 1100, 0, took=500, key="k", **next_)
    t.message("low", 1300, 0, priority=1, **next_)
    t.deliver("a", 1700, -1, attempt=2, key="k", ready_us=at(1200), **next_)


def own_ids_with_a_tilde_are_tried_again(t: Told) -> None:
    t.own()
    for i in range(2):
        t.publish(f"order~{i}", offset=i)
        t.end(t.start(f"order~{i}", 10 + i, i), 20, events.RETRIED, due_ms=at(30) // 1000)
        t.deliver(f"order~{i}", 40 + i, -1, attempt=2)


def expired_at_the_very_border(t: Told) -> None:
    t.own()
    t.publish("a")
    t.add(events.DEAD, 500, id="a", offset=0, priority=0, attempt=1, reason=events.EXPIRED, until=at(500))
    t.message("b", 499.999, 1, until=at(500))


def the_asked_for_pause_is_kept_to_the_millisecond(t: Told) -> None:
    t.own()
    t.publish("a")
    t.end(t.start("a", 10), 20, events.RETRIED, due_ms=at(60_020) // 1000)
    t.deliver("a", 60_020, -1, attempt=2)


def a_high_one_has_waited_for_less_than_it_takes_to_read(t: Told) -> None:
    t.own()
    for i in range(20):
        t.message(f"low{i}", 1000 * i, i, priority=1)
    t.publish("high", 14_500)


def a_high_one_was_finished_unseen_by_a_killed_host(t: Told) -> None:
    t.killed.add("host")
    t.own()
    t.publish("high")
    t.message("low", 10, 0, priority=1)
    t.own(2000, "next", 2)
    for i in range(1, 20):
        t.message(f"low{i}", 2000 + 1000 * i, i, priority=1, source="next", epoch=2)


def a_host_that_had_nothing_to_do(t: Told) -> None:
    t.own()
    t.message("a", 10)
    t.idle.add("idle")


def a_content_that_came_back_twice(t: Told) -> None:
    t.own()
    for ms in (0, 1000, 2000):
        t.publish(CONTENT, ms, offset=None, due_ms=at(ms + 500) // 1000)
        t.add(events.MERGED, ms + 100, "producer", id=CONTENT, published_us=at(ms + 100))
        t.deliver(CONTENT, ms + 500, -1, published_us=None)


def dead_replayed_and_recalled(t: Told) -> None:
    t.own()
    t.publish("a")
    t.end(t.start("a", 10), 20, events.DEAD, reason=f"{events.REJECTED}no")
    t.add(events.REPLAYED, 400, "cli", priority=0, id="a")
    t.add(events.RECALLED, 500, "cli", priority=0, id="a")


LAWFUL: tuple[tuple[Planter, dict[str, Any]], ...] = (
    (a_content_of_unknown_outcome_was_published, {}),
    (a_publish_of_unknown_outcome_is_repeated, {}),
    (a_key_s_next_starts_on_a_host_whose_clock_is_behind, {}),
    (a_key_goes_on_at_a_clock_that_is_ahead_and_comes_back, {}),
    (a_retry_is_made_by_a_clock_that_is_behind, {}),
    (a_replay_is_recorded_by_a_clock_that_is_behind, {}),
    (a_smooth_group_moves_to_a_clock_that_is_behind, {"quotas": {"shop/0": 10}, "bursts": {"shop/0": 1}}),
    (a_group_moves_twice_between_three_clocks, {"quotas": {"shop/0": 50}}),
    (a_content_is_published_by_a_clock_that_is_ahead, {}),
    (what_a_store_lost_is_read_again_and_dies, {}),
    (a_keyed_message_has_two_copies_after_a_crash, {"duplicates_allowed": 1}),
    (own_ids_with_a_tilde_are_tried_again, {}),
    (expired_at_the_very_border, {}),
    (the_asked_for_pause_is_kept_to_the_millisecond, {}),
    (a_high_one_has_waited_for_less_than_it_takes_to_read, {"still_queued": ["high"]}),
    (a_host_that_had_nothing_to_do, {}),
    (a_content_that_came_back_twice, {}),
    (dead_replayed_and_recalled, {}),
)


@pytest.mark.parametrize(("plant", "given"), LAWFUL, ids=[plant.__name__ for plant, _ in LAWFUL])
def test_a_hostile_oddity_is_not_condemned(tmp_path: Path, plant: Planter, given: dict[str, Any]) -> None:
    told = Told()
    plant(told)
    told.write(tmp_path)
    proof = prove(tmp_path, Expectations(**{"still_queued": (), **given}))
    assert verdict(proof) == "", proof


def test_what_a_killed_host_may_have_finished_is_no_high_one_that_waits(tmp_path: Path) -> None:
    told = Told()
    a_high_one_was_finished_unseen_by_a_killed_host(told)
    told.write(tmp_path)
    assert not prove(tmp_path, Expectations(still_queued=())).priority_inversions


# ------------------------------------------------------------------------------------------------- catalogs and caps


def capped(directory: Path, told: Told, topic: Topic) -> Proof:
    told.write(directory)
    quotas, bursts = limits([topic])
    return prove(directory, Expectations(still_queued=(), quotas=quotas, bursts=bursts))


def busy(*counts: int) -> Told:
    """So many starts in each second."""
    told = Told()
    told.own()
    offset = 0
    for second, count in enumerate(counts):
        for n in range(count):
            told.message(f"m{second}-{n}", 1000 * second + 10 * n, offset, took=1)
            offset += 1
    return told


def lowered(since_s: int, *more: Division) -> Topic:
    topic = split(Topic("shop", qps=4))
    return Topic(
        **{name: getattr(topic, name) for name in topic.__struct_fields__} | {"divisions": (*more, Division(since_s, 4, 50, 1))}
    )


def test_the_cap_of_a_topic_before_it_was_changed_is_not_that_of_now(tmp_path: Path) -> None:
    assert verdict(capped(tmp_path, busy(10, 10, 4, 4), lowered(T0_S + 2))) == ""


def test_the_cap_of_a_topic_since_it_was_changed_is_that_of_now(tmp_path: Path) -> None:
    assert verdict(capped(tmp_path, busy(10, 10, 4, 5), lowered(T0_S + 2))) == "Q"


def test_a_leap_of_the_quota_begins_in_its_second_and_not_in_the_one_before(tmp_path: Path) -> None:
    topic = lowered(T0_S + 3, Division(T0_S + 1, 2, 50, 1), Division(T0_S + 2, 10, 50, 1))
    assert verdict(capped(tmp_path / "kept", busy(3, 2, 10, 4), topic)) == ""
    assert verdict(capped(tmp_path / "early", busy(3, 3, 10, 4), topic)) == "Q"
    assert verdict(capped(tmp_path / "late", busy(3, 2, 10, 5), topic)) == "Q"


def test_a_borrowing_topic_is_held_to_its_sum(tmp_path: Path) -> None:
    topic = split(Topic("shop", qps=4, group_qps=2, options=TopicOptions(borrow=True)))
    assert verdict(capped(tmp_path / "kept", busy(4), topic)) == ""
    assert verdict(capped(tmp_path / "over", busy(5), topic)) == "Q"

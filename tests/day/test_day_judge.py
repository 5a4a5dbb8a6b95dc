"""The judge of the day is judged: it finds each kind of planted fault, and nothing in a day without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from day_judge import AT_RISK_US, judged
from day_record import Death, Evidence, Journal, Runs
from day_story import BEGIN_US, KILLED_US, find, good_day, run, sent

Fault = Callable[[Evidence], None]


def lose_one(e: Evidence) -> None:
    del e.runs[find(e, "plain-0", "7:ok")]


def lose_what_came_after_its_twin_was_handled(e: Evidence) -> None:
    del e.runs[find(e, "range-0", "c") + 1]


def lose_a_summand(e: Evidence) -> None:
    del e.runs[find(e, "sums-0", "4")]


def add_twice(e: Evidence) -> None:
    e.runs.append(run("sums-0", "4", 9))


def skip_an_occurrence(e: Evidence) -> None:
    del e.runs[find(e, "scheduled-0", "s.2")]


def invent_an_occurrence(e: Evidence) -> None:
    e.runs.append(run("scheduled-0", "s.3", 7.1))


def invent_one(e: Evidence) -> None:
    e.runs.append(run("plain-0", "500:ok", 40))


def start_what_was_recalled(e: Evidence) -> None:
    e.runs.append(run("delayed-0", "0:ok", 12.5))


def start_one_too_many_of_a_topic(e: Evidence) -> None:
    for i in range(3):
        e.sent.append(sent("plain-0", f"30{i}:ok", 40))
        e.runs.append(run("plain-0", f"30{i}:ok", 41.1 + i / 10))


def start_one_too_many_over_a_topics_groups(e: Evidence) -> None:
    for i in range(13):
        e.sent.append(sent("wide-0", f"{i}:ok", 40))
        e.runs.append(run("wide-0", f"{i}:ok", 41.1 + i / 100, group=i % 3, ready_us=0))


def let_a_backlog_wait(e: Evidence) -> None:
    """From the seventh second on it has waited for long enough; a start a second is half of the quota."""
    for i in range(20):
        e.sent.append(sent("plain-0", f"3{i}:ok", 80, 2))
        e.runs.append(run("plain-0", f"3{i}:ok", 81 + i, 2))


def start_one_too_many_smoothly(e: Evidence) -> None:
    for i in range(2):
        e.sent.append(sent("smooth-0", f"20{i}:ok", 0))
        e.runs.append(run("smooth-0", f"20{i}:ok", 3.5 + i / 10))


def swap_two_of_a_key(e: Evidence) -> None:
    a, b = find(e, "keyed-0", "4:ok"), find(e, "keyed-0", "6:ok")
    e.runs[a], e.runs[b] = e.runs[a]._replace(name="6:ok"), e.runs[b]._replace(name="4:ok")


def run_two_of_a_key_at_once(e: Evidence) -> None:
    i = find(e, "keyed-0", "4:ok")
    e.runs[i] = e.runs[i]._replace(ended_us=e.runs[find(e, "keyed-0", "6:ok")].begun_us + 5)


def run_two_of_a_slot_at_once(e: Evidence) -> None:
    i = find(e, "timed-0", "4:ok")
    e.runs[i] = e.runs[i]._replace(ended_us=e.runs[find(e, "timed-0", "5:ok")].begun_us + 5)


def pass_over_a_ready_one(e: Evidence) -> None:
    i = find(e, "plain-0", "6:ok")
    e.runs[i] = e.runs[i]._replace(ready_us=e.runs[find(e, "plain-0", "5:ok")].started_us - 100)


def pass_over_a_long_published_one(e: Evidence) -> None:
    e.disturbed_us = []
    e.sent.append(sent("plain-0", "400:ok", 40, 0))
    e.sent.append(sent("plain-0", "410:ok", 40, 2))
    e.runs += [run("plain-0", "410:ok", 47, 2), run("plain-0", "400:ok", 57.1, 0)]


def lose_one_that_was_not_to_be_dropped(e: Evidence) -> None:
    del e.runs[find(e, "dropping-0", "5:ok")]


def lose_one_of_a_topic_that_came_back(e: Evidence) -> None:
    del e.runs[find(e, "plain-forced", "1.1:ok")]


def start_a_deleted_one(e: Evidence) -> None:
    e.runs.append(run("plain-forced", "0.2:ok", 36))


def run_two_of_a_moved_key_at_once(e: Evidence) -> None:
    e.sent += [sent("moving-0", f"{i}:ok", 40 + i / 10, key="m") for i in (2, 3)]
    e.runs += [
        run("moving-0", "2:ok", 41, key="m", ended_us=KILLED_US - 10_000_000),
        run("moving-0", "3:ok", 42, key="m", group=1),
    ]


def die_twice(e: Evidence) -> None:
    e.deaths.append(Death("plain-0", "21:reject", "not this one"))


def die_for_no_reason(e: Evidence) -> None:
    e.deaths.append(Death("plain-0", "20:flaky", "ValueError: flaky"))


def die_of_another_reason(e: Evidence) -> None:
    e.deaths[0] = Death("plain-0", "21:reject", "expired")


def repeat_long_before_the_kill(e: Evidence) -> None:
    e.runs.append(run("plain-0", "3:ok", 65, host="host1.2"))


def repeat_a_repeat(e: Evidence) -> None:
    e.runs += [run("plain-0", "90:ok", at_s, host="host1.2") for at_s in (66, 67)]


def repeat_after_a_clean_stop(e: Evidence) -> None:
    e.sent.append(sent("plain-0", "91:ok", 80, 0))
    e.runs += [run("plain-0", "91:ok", 80.5, host="host1.2"), run("plain-0", "91:ok", 82, host="host1.3")]


def never_end(e: Evidence) -> None:
    e.sent.append(sent("plain-0", "92:ok", 80, 0))
    e.runs += [
        run("plain-0", "92:ok", 80.5, host="host1.2", ended_us=None, outcome=""),
        run("plain-0", "92:ok", 90, host="host1.2", attempt=2),
    ]


FAULTS: dict[Fault, str] = {
    lose_one: "lost: plain-0 7:ok",
    lose_what_came_after_its_twin_was_handled: "lost: range-0 c",
    lose_a_summand: "sums: sums-0: 9 published, 5 handled",
    add_twice: "sums: sums-0: 9 published, 13 handled",
    skip_an_occurrence: "lost: scheduled-0 s",
    invent_an_occurrence: "schedules: scheduled-0: 3 occurrences of 2",
    invent_one: "phantoms: nobody published plain-0/0 500:ok",
    start_what_was_recalled: "recalled: delayed-0/0 0:ok",
    start_one_too_many_of_a_topic: "topic_caps: plain-0: 3 starts in second 1700000041, at most 2",
    start_one_too_many_over_a_topics_groups: "topic_caps: wide-0: 13 starts",
    let_a_backlog_wait: "use: plain-0: 13 of 26 starts used",
    start_one_too_many_smoothly: "topic_caps: smooth-0: 13 starts in the second up to",
    swap_two_of_a_key: "key_order: keyed-0 key k0: 6:ok was delivered before 4:ok",
    run_two_of_a_key_at_once: "overlaps: at the same time: keyed-0/0 4:ok",
    run_two_of_a_slot_at_once: "overlaps: at the same time: timed-0/0 4:ok",
    pass_over_a_ready_one: "priority: plain-0/0 5:ok",
    pass_over_a_long_published_one: "priority: published long before, and passed over by 1: plain-0/0 400:ok",
    lose_one_that_was_not_to_be_dropped: "lost: dropping-0 5:ok",
    lose_one_of_a_topic_that_came_back: "lost: plain-forced 1.1:ok",
    start_a_deleted_one: "ghosts: plain-forced/0 0.2:ok",
    run_two_of_a_moved_key_at_once: "overlaps: at the same time: moving-0/0 2:ok",
    die_twice: "deaths: plain-0 21:reject is dead 2 times",
    die_for_no_reason: "deaths: plain-0 20:flaky is dead ('ValueError: flaky') and was handled",
    die_of_another_reason: "deaths: plain-0 21:reject is dead for no good reason: 'expired'",
    repeat_long_before_the_kill: "duplicates: handled 2 times: plain-0/0 3:ok",
    repeat_a_repeat: "duplicates: handled 3 times: plain-0/0 90:ok",
    repeat_after_a_clean_stop: "duplicates: handled 2 times: plain-0/0 91:ok",
    never_end: "endless: never ended: plain-0/0 92:ok",
}


def test_a_good_day_is_found_good() -> None:
    assert judged(good_day()) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_judge_finds(fault: Fault) -> None:
    evidence = good_day()
    fault(evidence)
    found = judged(evidence)
    assert any(line.startswith(FAULTS[fault]) for line in found), found
    kinds = {line.partition(":")[0] for line in found}
    assert len(kinds) <= 2, f"one fault, and the judge names {found}"


def test_quotas_may_stay_unused_while_a_host_or_its_store_has_no_time() -> None:
    evidence = good_day()
    let_a_backlog_wait(evidence)
    backlog = [run.started_us for run in evidence.runs]
    evidence.late.append((min(backlog), max(backlog)))
    assert judged(evidence) == []


def test_quotas_may_stay_unused_until_a_host_that_was_started_runs() -> None:
    evidence = good_day()
    first_s = (min(run.begun_us for run in evidence.runs) - BEGIN_US) / 1e6
    evidence.started_us["host0.1"] = BEGIN_US + round((first_s - 60) * 1e6)
    evidence.sent.append(sent("plain-0", "500:ok", first_s - 60, 2))
    evidence.runs.append(run("plain-0", "500:ok", first_s - 0.001, 2))
    assert judged(evidence) == []


def test_what_a_killed_host_may_repeat_is_what_it_ended_shortly_before() -> None:
    evidence = good_day()
    i = find(evidence, "plain-0", "90:ok")
    early_us = KILLED_US - AT_RISK_US - 1
    evidence.runs[i] = evidence.runs[i]._replace(ended_us=early_us)
    assert [line.partition(":")[0] for line in judged(evidence)] == ["duplicates"]
    evidence.late.append((KILLED_US - 2_000_000, KILLED_US - 1_500_000))
    assert judged(evidence) == []


def test_time_in_which_hosts_were_late_counts_once_and_only_before_a_moment() -> None:
    evidence = Evidence(0)
    assert evidence.before(1_000, 100) == 900
    evidence.late += [(950, 960), (940, 955), (945, 950), (890, 910), (990, 1_020), (700, 860)]
    assert evidence.before(1_000, 100) == 900 - (20 + 20 + 10) - 160
    assert evidence.before(1_000, 89) == 1_000 - 89 - (20 + 20 + 10)
    assert evidence.before(1_000, 60) == 1_000 - 60 - (20 + 10)


def test_the_journal_of_a_killed_host_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "host0.1.runs")
    runs = Runs(tmp_path)
    journal.write(0, 5, "", "plain-0", "a:ok", "id0", 0, 1, 1, None, 3, 4)
    assert [(r.name, r.ended_us, r.outcome) for r in runs.read()] == [("a:ok", None, "")]
    journal.write(0, 9, "done")
    with (tmp_path / "host0.1.runs").open("a") as file:
        file.write('[1, 10, "", "plain')
    assert [(r.host, r.begun_us, r.ended_us, r.outcome) for r in runs.read()] == [("host0.1", 5, 9, "done")]
    journal.close()

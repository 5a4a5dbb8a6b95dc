"""The judge of the day is judged: it finds each kind of planted fault, and nothing in a day without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from day_judge import judged
from day_record import Death, Evidence, Journal, Runs
from day_story import find, good_day, run, sent

Fault = Callable[[Evidence], None]


def lose_one(e: Evidence) -> None:
    del e.runs[find(e, "plain-0", "7:ok")]


def lose_a_summand(e: Evidence) -> None:
    del e.runs[find(e, "sums-0", "4")]


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


def run_two_of_a_slot_at_once(e: Evidence) -> None:
    i = find(e, "timed-0", "4:ok")
    e.runs[i] = e.runs[i]._replace(ended_us=e.runs[find(e, "timed-0", "5:ok")].begun_us + 5)


def pass_over_a_ready_one(e: Evidence) -> None:
    i = find(e, "plain-0", "6:ok")
    e.runs[i] = e.runs[i]._replace(ready_us=e.runs[find(e, "plain-0", "5:ok")].started_us - 100)


def start_a_deleted_one(e: Evidence) -> None:
    e.runs.append(run("plain-forced", "0.2:ok", 36))


def die_twice(e: Evidence) -> None:
    e.deaths.append(Death("plain-0", "21:reject", "not this one"))


def repeat_long_before_the_kill(e: Evidence) -> None:
    e.runs.append(run("plain-0", "3:ok", 65, host="host1.2"))


def never_end(e: Evidence) -> None:
    e.sent.append(sent("plain-0", "92:ok", 80, 0))
    e.runs += [
        run("plain-0", "92:ok", 80.5, host="host1.2", ended_us=None, outcome=""),
        run("plain-0", "92:ok", 90, host="host1.2", attempt=2),
    ]


FAULTS: dict[Fault, str] = {
    lose_one: "lost: plain-0 7:ok",
    lose_a_summand: "sums: sums-0: 9 published, 5 handled",
    invent_an_occurrence: "schedules: scheduled-0: 3 occurrences of 2",
    invent_one: "phantoms: nobody published plain-0/0 500:ok",
    start_what_was_recalled: "recalled: delayed-0/0 0:ok",
    start_one_too_many_of_a_topic: "topic_caps: plain-0: 3 starts in second 1700000041, at most 2",
    let_a_backlog_wait: "use: plain-0: 13 of 26 starts used",
    start_one_too_many_smoothly: "topic_caps: smooth-0: 13 starts in the second up to",
    swap_two_of_a_key: "key_order: keyed-0 key k0: 6:ok was delivered before 4:ok",
    run_two_of_a_slot_at_once: "overlaps: at the same time: timed-0/0 4:ok",
    pass_over_a_ready_one: "priority: plain-0/0 5:ok",
    start_a_deleted_one: "ghosts: plain-forced/0 0.2:ok",
    die_twice: "deaths: plain-0 21:reject is dead 2 times",
    repeat_long_before_the_kill: "duplicates: handled 2 times: plain-0/0 3:ok",
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

"""Schedules, whatever their settings and however irregularly they are come to: numbered once, exact, as promised."""

from __future__ import annotations

import datetime
import zoneinfo

from hypothesis import given, settings
from hypothesis import strategies as st

from emq.runtime import errors
from emq.timetable import occurrences
from emq.timetable import schedule as spec
from emq.timetable.occurrences import MISSED_AFTER_MS, Fired
from emq.timetable.schedule import Schedule

START = 1_774_750_000_000
"""Some hours before the clocks of Berlin go forward."""

missed = st.sampled_from(["skip", "once", "all"])
waits = st.lists(st.integers(0, 60_000), min_size=1, max_size=8)


@st.composite
def periodic(draw: st.DrawFn) -> Schedule:
    return spec.create(
        start_ms=START + draw(st.integers(0, 999)),
        every_s=draw(st.integers(500, 40_000)) / 1000,
        repeat=draw(st.none() | st.integers(0, 30)),
        delay_s=draw(st.integers(0, 20_000)) / 1000,
        missed=draw(missed),
    )


@st.composite
def by_cron(draw: st.DrawFn) -> Schedule:
    repeat = draw(st.integers(0, 5))
    return spec.create(
        start_ms=START + draw(st.integers(0, 999)),
        cron=draw(st.sampled_from(["* * * * *", "*/7 * * * * *", "30 1,2 * * *", "0 3 * * 0", "59,3 * * * *"])),
        tz=draw(st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns"])),
        every_s=draw(st.integers(500, 30_000)) / 1000 if repeat else None,
        repeat=repeat,
        delay_s=draw(st.integers(0, 90_000)) / 1000,
        missed=draw(missed),
    )


schedules = periodic() | by_cron()


def visits(schedule: Schedule, pauses: list[int], limit: int) -> list[tuple[int, Fired]]:
    """Come to the schedule after each pause, as often as something is due, as a host does."""
    now_ms, visited = schedule.due_ms, []
    following: Schedule | None = schedule
    for pause in pauses:
        now_ms += pause
        while following is not None and following.due_ms <= now_ms:
            fired = occurrences.fire(following, now_ms, limit)
            assert fired.following is None or fired.following != following
            visited.append((now_ms, fired))
            following = fired.following
    return visited


def flat(visited: list[tuple[int, Fired]]) -> list[tuple[int, int]]:
    return [occurrence for _, fired in visited for occurrence in fired.occurrences]


@settings(deadline=None)
@given(schedules, waits, st.integers(1, 40))
def test_numbers_come_once_in_order_and_never_early_or_more_than_asked(
    schedule: Schedule, pauses: list[int], limit: int
) -> None:
    visited = visits(schedule, pauses, limit)
    found = flat(visited)
    numbers = [number for number, _ in found]
    assert numbers == sorted(set(numbers))
    assert [due for _, due in found] == sorted(due for _, due in found)
    assert all(len(fired.occurrences) <= limit for _, fired in visited)
    assert all(due <= now for now, fired in visited for _, due in fired.occurrences)


@settings(deadline=None)
@given(schedules, waits, st.integers(1, 40))
def test_every_occurrence_is_of_the_same_sequence_and_all_gives_the_whole_of_it(
    schedule: Schedule, pauses: list[int], limit: int
) -> None:
    visited = visits(schedule, pauses, limit)
    now_ms = schedule.due_ms + sum(pauses)
    sequence = [o for o in occurrences.upcoming(schedule, 2_000) if o[1] <= now_ms]
    found = flat(visited)
    assert [number for number, _ in sequence] == list(range(1, len(sequence) + 1))
    assert set(found) <= set(sequence)
    if schedule.missed == "all":
        assert found == sequence
    last = visited[-1][1].following
    assert last is None or (last.fired, last.due_ms > now_ms) == (len(sequence), True)


@settings(deadline=None)
@given(schedules, waits)
def test_only_what_is_missed_is_left_out_and_once_gives_the_last_of_it(schedule: Schedule, pauses: list[int]) -> None:
    now_ms, following = schedule.due_ms, schedule
    for pause in pauses:
        now_ms += pause
        if following.due_ms > now_ms:
            continue
        due = [o for o in occurrences.upcoming(following, 2_000) if o[1] <= now_ms]
        late = [o for o in due if o[1] < now_ms - MISSED_AFTER_MS]
        on_time = due[len(late) :]
        expected = {"skip": on_time, "once": late[-1:] + on_time, "all": due}[schedule.missed]
        found, after = occurrences.fire(following, now_ms)
        assert found == expected
        if after is None:
            return
        following = after


@settings(deadline=None)
@given(periodic(), waits)
def test_due_times_are_exact_multiples_and_repeats_are_counted(schedule: Schedule, pauses: list[int]) -> None:
    first = schedule.due_ms
    found = flat(visits(schedule, pauses, 1000))
    assert all(due == first + (number - 1) * schedule.every_ms for number, due in found)
    assert schedule.repeat is None or all(number <= schedule.repeat + 1 for number, _ in found)


@settings(deadline=None)
@given(schedules, waits)
def test_the_state_survives_being_written_down(schedule: Schedule, pauses: list[int]) -> None:
    for _, fired in visits(schedule, pauses, 7):
        if fired.following is not None:
            assert spec.decode(fired.following.encode()) == fired.following
            assert str(fired.following)


@settings(deadline=None)
@given(st.integers(1, 10**9), st.none() | st.integers(0, 10**9), st.integers(0, 10**13), missed)
def test_years_of_missed_occurrences_are_passed_by_in_one_step(
    every_ms: int, repeat: int | None, late_ms: int, policy: spec.Missed
) -> None:
    schedule = Schedule(every_ms, repeat, missed=policy, runs=((START, repeat),))
    found, following = occurrences.fire(schedule, START + late_ms)
    assert len(found) <= occurrences.STEPS
    if policy == "all" or following is None:
        return
    assert following.due_ms > START + late_ms - MISSED_AFTER_MS
    assert following.due_ms == START + following.fired * every_ms


@settings(deadline=None)
@given(st.text(max_size=30) | st.from_regex(r"([0-9*/,\-#LWA-C]{1,5} ){4,5}[0-9*/,\-#LW]{1,5}", fullmatch=True))
def test_any_text_is_a_cron_expression_or_refused_in_one_line(text: str) -> None:
    refusal, due_ms = "", START + 1
    try:
        due_ms = spec.create(start_ms=START, cron=text).due_ms
    except errors.InvalidMessage as exc:
        refusal = str(exc)
    assert "\n" not in refusal
    assert due_ms > START


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 23),
    st.integers(0, 59),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/St_Johns", "Asia/Kolkata"]),
)
def test_a_fixed_time_of_day_comes_once_on_each_day_whatever_clocks_do(hour: int, minute: int, tz: str) -> None:
    zone = zoneinfo.ZoneInfo(tz)
    begin = datetime.datetime(2026, 1, 1, tzinfo=zone)
    schedule = spec.create(start_ms=int(begin.timestamp() * 1000) - 1, cron=f"{minute} {hour} * * *", tz=tz)
    times = [datetime.datetime.fromtimestamp(due / 1000, zone) for _, due in occurrences.upcoming(schedule, 365)]
    assert [t.date() for t in times] == [begin.date() + datetime.timedelta(days=n) for n in range(365)]
    assert sum((t.hour, t.minute) != (hour, minute) for t in times) <= 1

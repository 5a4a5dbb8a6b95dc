"""Schedules: what is due of them is judged, each kind of planted fault is found."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from emq.timetable import firing, occurrences
from emq.timetable import schedule as spec
from emq.timetable.firing import Firing
from emq.timetable.occurrences import Fired, ScheduleProgress
from emq.topics.model import Kind
from emq_stores.memory.lane_store import MemoryLanes
from simulation.test_checker import CRASH, broken, outcome
from support.simulation import timetable
from support.simulation.extra import RECURRING
from support.simulation.occurrences import Standing, Told
from support.simulation.plans import Event, TopicPlan
from support.simulation.run import carry_out
from support.simulation.schedule import Schedule

OPTIONS: dict[str, Any] = {"max_attempts": 3, "backoff_s": (0.3, 0.8), "jitter": 0.0}
TOPIC = TopicPlan(RECURRING, 24.0, 12.0, 0.5, delayed=1.0, slow=0.05, options=OPTIONS)
AWAY = (Event(5.0, "store_down_for_all", 0, 6.0, 0.5),)


@pytest.mark.parametrize("kind", [Kind.LOG, Kind.FIXED_TIME, Kind.PRIORITY])
@pytest.mark.parametrize("events", [CRASH, AWAY], ids=["crash", "away"])
def test_nothing_is_found_where_nothing_is_planted(kind: Kind, events: tuple[Event, ...]) -> None:
    options = OPTIONS if kind is Kind.LOG else {**OPTIONS, "retry": "backoff"}
    found = outcome(events, TOPIC._replace(kind=kind, options=options), clean=False)
    assert found.violations == []
    assert found.happened["occurrences"] > 20
    assert found.happened["schedule taken back"] > 2


@pytest.mark.parametrize("seed", [0, 4])
def test_lost_answers_repeat_no_occurrence_that_was_handled(seed: int) -> None:
    events = [Event(3.0 + host * 0.01 + 5 * i, "store_loss", host, 4.8, 0.9) for host in range(2) for i in range(3)]
    found = carry_out(Schedule(seed, False, (0.0,), 2, (TOPIC,), tuple(sorted(events))))
    assert found.violations == []
    assert found.happened["occurrences"] > 20


def test_an_occurrence_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    count, real = itertools.count(), occurrences.fire

    def fire(schedule: spec.Schedule, now_ms: int, limit: int = occurrences.STEPS) -> Fired:
        fired = real(schedule, now_ms, limit)
        return fired._replace(occurrences=fired.occurrences[next(count) == 10 :])

    monkeypatch.setattr(occurrences, "fire", fire)
    assert broken(outcome(topic=TOPIC)) == {"schedule"}


def test_occurrences_before_their_time_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = occurrences.fire
    monkeypatch.setattr(occurrences, "fire", lambda schedule, now_ms, limit: real(schedule, now_ms + 2_000, limit))
    found = outcome(topic=TOPIC)
    assert "before its time" in "".join(violation.text for violation in found.violations)


def test_due_times_that_drift_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ScheduleProgress.advance

    def advance(self: ScheduleProgress) -> int:
        number = real(self)
        self._runs = [(due_ms + 1, left) for due_ms, left in self._runs]
        return number

    monkeypatch.setattr(ScheduleProgress, "advance", advance)
    assert "schedule" in broken(outcome(topic=TOPIC))


def test_a_schedule_that_nobody_fires_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    count, real = itertools.count(), Firing.put

    def put(self: Firing, *entry: Any) -> None:
        if next(count) != 5:
            real(self, *entry)

    monkeypatch.setattr(Firing, "put", put)
    found = outcome(topic=TOPIC)
    assert "it is late" in "".join(violation.text for violation in found.violations)


def test_a_schedule_that_goes_on_after_it_was_taken_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MemoryLanes._settle

    def settle(self: MemoryLanes, settle: Any) -> Any:
        kept = self._world.lanes[settle.lane].bodies.get(settle.id) if settle.lane in self._world.lanes else None
        answer = real(self, settle)
        if settle.verdict is firing.LaneVerdict.RECALL and answer is True and kept is not None:
            self._world.lane(settle.lane).bodies[settle.id] = kept
            self._world.wait(settle.lane, settle.id, 0, 0)
        return answer

    monkeypatch.setattr(MemoryLanes, "_settle", settle)
    assert "after it was taken back" in "".join(v.text for v in outcome(topic=TOPIC).violations)


def test_occurrences_that_count_as_missed_too_early_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(occurrences, "MISSED_AFTER_MS", 1_000)
    found = outcome(AWAY, TOPIC, clean=False)
    assert "leaves out occurrence" in "".join(violation.text for violation in found.violations)


def test_an_occurrence_that_comes_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    count, real = itertools.count(), MemoryLanes._settle

    def settle(self: MemoryLanes, settle: Any) -> Any:
        if settle.verdict is firing.LaneVerdict.ACK and "." in settle.id and next(count) == 5:
            due_ms = int(self._world.clock.now() * 1000) + 1
            return real(self, settle._replace(verdict=firing.LaneVerdict.RETRY, due_ms=due_ms, body=self.body(settle)))
        return real(self, settle)

    monkeypatch.setattr(MemoryLanes, "body", lambda self, s: self._world.lanes[s.lane].bodies[s.id], raising=False)
    monkeypatch.setattr(MemoryLanes, "_settle", settle)
    assert "D" in broken(outcome(topic=TOPIC))


def test_no_schedule_has_the_name_of_a_message() -> None:
    """A schedule that a store has kept would otherwise stand for a message of that name that the store has lost."""
    found = outcome(topic=TOPIC).evidence
    told = found.occurrences.told
    assert len(told) > 2
    assert f"{RECURRING}#{len(told)}" in found.published
    assert not told.keys() & found.published.keys()


def test_schedules_that_are_created_late_are_taken_back_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last change falls behind the time at which all has healed, 23 s."""
    monkeypatch.setattr(timetable, "LEAST_S", 3.95)
    monkeypatch.setattr(timetable, "MOST_S", 3.95)
    found = outcome(topic=TOPIC)
    assert any(23.0 < standing.at < 24.0 for standing in found.evidence.occurrences.standing.values())
    assert found.violations == []


def test_in_calm_times_schedules_begin_soon_by_the_environments_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one waits behind hundreds of its own occurrences where that time is three hours ahead of the true one."""
    usual, try_out = timetable.Timetable._told, timetable.Timetable.try_out

    def told(self: timetable.Timetable, now_us: int) -> Told:
        # The 561st is due a second after this, where the true time is given.
        return Told(self._count, (now_us // 125_000 + 28) * 125, 19_050, missed="all")

    async def calm(self: timetable.Timetable) -> None:
        monkeypatch.setattr(timetable.Timetable, "_told", told)
        await try_out(self)
        monkeypatch.setattr(timetable.Timetable, "_told", usual)

    monkeypatch.setattr(timetable.Timetable, "try_out", calm)
    found = outcome((Event(19.5, "reference_jump", 0, 0.0, 0.994),), TOPIC, clean=False)
    assert any("reference_jump: +10670" in text for _, _, text in found.evidence.history)
    assert found.happened["tried"] == 1
    assert found.violations == []


@pytest.mark.parametrize(
    ("told", "due"),
    [
        (Told(1, 1_000, 500, 2), [1_000, 1_500, 2_000, None]),
        (Told(1, 1_000, 500, None, 0, 250), [1_250, 1_750, 2_250]),
        (Told(1, 5_000, period_s=5), [10_000, 15_000]),
        (Told(1, 5_001, 4_000, 2, 5, 100), [10_100, 14_100, 15_100, 18_100, 19_100, 20_100]),
    ],
)
def test_due_times_are_those_of_the_schedule(told: Told, due: list[int | None]) -> None:
    standing = Standing("s", "t/0", told, 0.0)
    assert [standing.due_ms(number + 1) for number in range(len(due))] == due
    made = spec.create(
        start_ms=told.start_ms,
        every_s=told.every_ms / 1000 or None,
        repeat=told.repeat if told.every_ms else None,
        cron=told.cron,
        delay_s=told.delay_ms / 1000,
    )
    wanted = [due_ms for due_ms in due if due_ms is not None]
    assert [due_ms for _, due_ms in occurrences.upcoming(made, len(wanted))] == wanted


@pytest.mark.parametrize(("missed", "skipped"), [("skip", 3), ("once", 2), ("all", 0)])
def test_what_was_missed_is_left_out_by_its_rule_only(missed: spec.Missed, skipped: int) -> None:
    standing = Standing("s", "t/0", Told(1, 1_000, 1_000, missed=missed), 0.0)
    now_ms = 3_001 + 10_000
    assert [n for n in range(1, 6) if standing.may_skip(n, now_ms)] == list(range(1, skipped + 1))

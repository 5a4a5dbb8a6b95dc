"""What running tasks tell of themselves is kept for the next attempt, within bounds; silence ends an attempt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping

import msgspec
import pytest

from emq.runtime import errors
from emq_scheduling.hosting import beats as beats_
from emq_scheduling.hosting.attempts import Run
from emq_scheduling.hosting.beats import MOST_BYTES, MOST_LEFT, encoded
from emq_scheduling.hosting.silence import STALL_S, Silence
from emq_scheduling.model import Limit, Pool, Resource, TaskType
from emq_scheduling.pools import rules
from emq_scheduling.records.progress import Key, Progress, Told, key_of
from emq_scheduling.tasks import Task
from support.scheduler_bench import SchedulerBench


class Rows(Progress):
    """The table, in memory."""

    def __init__(self) -> None:
        self.rows: dict[Key, Told] = {}
        self.saves: list[int] = []
        self.looks = 0
        self.is_away = False

    async def is_any(self, pool: str) -> bool:
        return bool(self.rows)

    async def of(self, pool: str, tasks: Collection[str]) -> dict[Key, Told]:
        self._here()
        self.looks += 1
        return {key: told for key, told in self.rows.items() if key.task in tasks}

    async def save(self, pool: str, told: Mapping[Key, Told], gone: Collection[Key]) -> None:
        self._here()
        self.saves.append(len(told))
        rows = dict(told)
        await asyncio.sleep(0)
        self.rows.update(rows)
        for key in gone:
            self.rows.pop(key, None)

    def _here(self) -> None:
        if self.is_away:
            raise errors.DatabaseUnavailable("it is away")


def task(id_: str = "t", submitted_us: int = 0, attempt: int = 1) -> Task:
    return Task(id_, "p", "work", "", None, b"", attempt, submitted_us)


def pool_of(**of_type: object) -> Pool:
    resources = {"r": Resource(limits=(Limit("slots", 5, "in_flight"),), takes={"work": {}})}
    return Pool("p", resources=resources, types={"work": TaskType(**of_type)})  # type: ignore[arg-type]


class Host(SchedulerBench):
    def __init__(self, pool: Pool, rows: Rows) -> None:
        super().__init__(pool, progress=rows)
        assert self.scheduler._beats is not None
        self.beats = self.scheduler._beats


# ------------------------------------------------------------------------------------------------------- the progress


async def test_the_next_attempt_reads_what_the_last_one_told_also_on_another_host() -> None:
    rows, found = Rows(), list[object]()

    async def perform(one: Task, run: Run) -> None:
        found.append(run.progress)
        run.beat()
        run.beat({"page": 1})
        run.beat({"page": 2})
        found.append(run.progress)
        raise ValueError("the line was cut")

    first = Host(pool_of(), rows)
    with pytest.raises(ValueError, match="cut"):
        await first.scheduler.perform(task(), perform)
    first.beats.leave(task(), has_ended=False)
    assert await first.beats.save() is False
    second = Host(pool_of(), rows)
    await second.beats.begin()
    assert second.beats.may_have(task(), 1)
    await second.beats.look(task())
    with pytest.raises(ValueError, match="cut"):
        await second.scheduler.perform(task(), perform)
    assert found == [None, {"page": 2}, {"page": 2}, {"page": 2}]


async def test_what_a_performer_tells_after_its_attempt_is_not_kept() -> None:
    rows, late = Rows(), list[Run]()

    async def perform(one: Task, run: Run) -> None:
        late.append(run)

    host = Host(pool_of(), rows)
    await host.scheduler.perform(task(), perform)
    late[0].beat("later")
    assert await host.beats.save() is False
    assert rows.saves == []


async def test_a_failed_attempt_whose_word_is_not_saved_yet_is_read_on_the_same_host() -> None:
    rows = Rows()
    host = Host(pool_of(), rows)
    host.beats.tell(task(), 1, encoded(7))
    host.beats.leave(task(), has_ended=False)
    await host.beats.look(task())
    assert (host.beats.progress(task()), rows.looks) == (7, 0)


async def test_a_word_that_comes_while_the_last_one_is_saved_is_saved_next() -> None:
    rows = Rows()
    host = Host(pool_of(), rows)
    host.beats.tell(task(), 1, encoded(1))
    saving = asyncio.create_task(host.beats.save())
    await asyncio.sleep(0)
    host.beats.tell(task(), 1, encoded(2))
    await saving
    await host.beats.save()
    assert rows.rows[key_of(task())].body == b"2"


async def test_many_beats_are_one_write_and_many_tasks_are_written_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats_, "AT_ONCE", 10)
    rows = Rows()
    host = Host(pool_of(), rows)
    for step in range(50):
        for number in range(25):
            host.beats.tell(task(f"t{number}"), 1, encoded(step))
    assert [await host.beats.save() for _ in range(4)] == [True, True, False, False]
    assert rows.saves == [10, 10, 5]
    assert {told.body for told in rows.rows.values()} == {b"49"}


async def test_nothing_is_left_of_a_task_that_has_ended() -> None:
    rows = Rows()
    host = Host(pool_of(), rows)
    host.beats.tell(task(), 1, encoded(1))
    await host.beats.save()
    assert rows.rows
    host.beats.leave(task(), has_ended=True)
    await host.beats.save()
    assert not rows.rows
    assert not any((host.beats._told, host.beats._unsaved, host.beats._left, host.beats._gone))


async def test_without_progress_nobody_looks_and_a_task_of_another_submit_is_another_one() -> None:
    rows = Rows()
    host = Host(pool_of(), rows)
    await host.beats.begin()
    assert not host.beats.may_have(task(attempt=3), 3)
    host.beats.tell(task(), 1, encoded("mine"))
    assert host.beats.progress(task(submitted_us=9)) is None
    new = task("new", submitted_us=2_000_000_000)
    assert not host.beats.may_have(new, 1)
    assert host.beats.may_have(new, 2)


async def test_the_memory_is_bounded_while_the_database_is_away() -> None:
    rows = Rows()
    rows.is_away = True
    host = Host(pool_of(), rows)
    for number in range(MOST_LEFT + 100):
        host.beats.tell(task(f"t{number}"), 1, encoded(number))
        host.beats.leave(task(f"t{number}"), has_ended=False)
    with pytest.raises(errors.DatabaseUnavailable):
        await host.beats.save()
    assert len(host.beats._told) == len(host.beats._unsaved) == len(host.beats._left) == MOST_LEFT
    assert host.beats.progress(task("t0")) is None
    rows.is_away = False
    await host.beats.end()
    assert len(rows.rows) == MOST_LEFT
    assert not host.beats._told


@pytest.mark.parametrize(
    ("progress", "told"),
    [("x" * MOST_BYTES, "progress has 4,098 bytes as JSON; give at most 4,096"), ({1, object()}, "no value that JSON")],
)
async def test_progress_that_cannot_be_kept_is_refused_in_one_line(progress: object, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        encoded(progress)


async def test_tasks_that_end_before_they_are_saved_leave_nothing_to_delete() -> None:
    rows = Rows()
    host = Host(pool_of(), rows)
    for number in range(5_000):  # more in a second than one save deletes
        host.beats.tell(task(f"t{number}"), 1, encoded(number))
        host.beats.leave(task(f"t{number}"), has_ended=True)
    assert not host.beats._gone
    host.beats.tell(task(), 1, encoded(1))
    saving = asyncio.create_task(host.beats.save())
    await asyncio.sleep(0)
    host.beats.leave(task(), has_ended=True)  # while its row is written
    await saving
    await host.beats.save()
    assert not rows.rows


async def test_a_task_that_ends_in_the_store_leaves_no_row() -> None:
    rows = Rows()
    host = Host(pool_of(), rows)
    await host.beats.begin()
    host.beats.ended_in_store(task(), 2)
    assert not host.beats._gone  # nothing was told in this pool
    for one in (task("saved"), task("unsaved")):
        host.beats.tell(one, 1, encoded(1))
        host.beats.leave(one, has_ended=False)
        if one.id == "saved":
            await host.beats.save()
        host.beats.ended_in_store(one, 2)
    await host.beats.save()
    assert not rows.rows
    rows.is_away = True
    for number in range(MOST_LEFT + 10):
        host.beats.ended_in_store(task(f"t{number}"), 2)
    assert len(host.beats._gone) == MOST_LEFT


async def test_the_word_of_a_later_attempt_replaces_that_of_a_former_one_though_the_clock_was_set_back() -> None:
    rows = Rows()
    rows.rows[key_of(task())] = Told(b"5", started_us=9_000, told_us=9_500)
    host = Host(pool_of(), rows)
    await host.beats.look(task())
    host.beats.tell(task(), 1_000, encoded(6))
    await host.beats.save()
    found = rows.rows[key_of(task())]
    assert found.body == b"6"
    assert found.started_us > 9_000  # so what the former host still writes does not replace it


async def test_a_beat_from_a_thread_after_the_end_is_not_kept() -> None:
    rows, runs = Rows(), list[Run]()

    async def perform(one: Task, run: Run) -> None:
        runs.append(run)

    host = Host(pool_of(), rows)
    await host.scheduler.perform(task(), perform)
    runs[0].is_over = False
    late = threading.Thread(target=runs[0].beat, args=("late",))
    with host.beats.lock:
        late.start()
        late.join(0.1)
        runs[0].is_over = True
        host.beats._is_any = False
    late.join()
    assert not any((host.beats._told, host.beats._unsaved, host.beats._is_any))


async def test_a_host_stops_though_a_performer_that_cannot_be_cancelled_goes_on_telling() -> None:
    class Busy(Rows):
        async def save(self, pool: str, told: Mapping[Key, Told], gone: Collection[Key]) -> None:
            await super().save(pool, told, gone)
            host.beats.tell(task(), 1, encoded(len(self.saves)))

    rows = Busy()
    host = Host(pool_of(), rows)
    host.beats.tell(task(), 1, encoded(0))
    await asyncio.wait_for(host.beats.end(), 10)
    assert rows.rows[key_of(task())].body == b"0"


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff"])
def test_progress_that_nobody_could_read_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="no value that JSON can hold"):
        encoded(msgspec.Raw(raw))


# -------------------------------------------------------------------------------------------------------------- silence


async def test_an_attempt_that_does_not_beat_is_cancelled_and_has_failed() -> None:
    ended = list[str]()

    async def perform(one: Task, run: Run) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("cancelled")

    host = Host(pool_of(beats_within_s=1.0), Rows())
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(errors.Retry, match="silent for over 1 s, its type's beats_within_s"):
        await host.scheduler.perform(task(), perform)
    assert 0.9 < loop.time() - began < 10
    assert ended == ["cancelled"]
    assert [(each.outcome, each.error) for each in host.ended] == [
        ("failed", "silent for over 1 s, its type's beats_within_s")
    ]
    assert not host.scheduler.running


async def test_an_attempt_that_beats_goes_on_and_the_last_silent_one_is_dead() -> None:
    async def perform(one: Task, run: Run) -> str:
        for _ in range(8):
            await asyncio.sleep(0.25)
            if one.id == "beats":
                run.beat()
        return "done"

    host = Host(pool_of(beats_within_s=1.0, max_attempts=2), Rows())
    found = await asyncio.gather(
        host.scheduler.perform(task("beats"), perform),
        host.scheduler.perform(task("silent", attempt=2), perform),
        return_exceptions=True,
    )
    assert found[0] == "done"
    assert {each.task.id: each.outcome for each in host.ended} == {"beats": "done", "silent": "dead"}


class Clocked:
    """A running attempt, and a loop whose time the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.beats = 0
        self.is_over = False
        self.now = 100.0
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def time(self) -> float:
        return self.now


def test_time_in_which_the_process_was_stopped_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    run, silence = Clocked(monkeypatch), Silence[str]()
    silence.watch("run", run, 5.0)
    run.now += 60.0  # as by SIGSTOP
    assert silence.look() == []
    run.now += 5.0 - STALL_S
    assert silence.look() == []
    found = list[str]()
    for _ in range(10):
        run.now += 0.5
        found += silence.look()
    assert found == ["run"]


def test_the_watch_follows_beats_and_forgets_what_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    run, silence = Clocked(monkeypatch), Silence[str]()
    silence.watch("run", run, 2.0)
    ended = Clocked(monkeypatch)
    silence.watch("ended", ended, 2.0)
    ended.is_over = True
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: run)
    for _ in range(10):
        run.now += 1.0
        run.beats += 1
        assert silence.look() == []
    run.now += 1.0
    assert silence.look() == []
    run.now += 1.0
    assert silence.look() == []
    run.now += 0.5
    assert silence.look() == ["run"]
    run.now += 10.0
    assert silence.look() == []


@pytest.mark.parametrize("within_s", [0.5, 0, -1, float("nan")])
def test_a_type_must_leave_time_to_beat(within_s: float) -> None:
    with pytest.raises(errors.InvalidPool, match="beats_within_s"):
        rules.check(pool_of(beats_within_s=within_s))

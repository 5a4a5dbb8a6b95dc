"""What is refused at submit: one clear line for each wrong value, and the other tasks of the call are stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import emq
from emq.runtime import errors
from emq_scheduling import topics
from emq_scheduling.model import Calendar, Hours, Limit, Pool, Resource, TaskType
from emq_scheduling.scheduling import Scheduling
from emq_scheduling.submitting import REFRESH_S, Receipt, Submission

NAN, INF, HUGE = float("nan"), float("inf"), 10**400


@pytest.fixture
async def scheduling(tmp_path: Path) -> AsyncIterator[Scheduling]:
    app = emq.App(f"sqlite:///{tmp_path}/emq.db")
    made = Scheduling(app)
    by_day = Calendar(hours=(Hours("08:00", "20:00", amounts={"calls": 500.0}),))
    pool = Pool(
        "p",
        resources={
            "r": Resource(limits=(Limit("tokens", 100, "minute"),), takes={"t": {}, "h": {}}),
            "by day": Resource(limits=(Limit("calls", 0, "second"),), takes={"d": {}}, calendar="day"),
        },
        types={"t": TaskType(), "h": TaskType(hours=(Hours("09:00", "10:00"),)), "d": TaskType()},
        calendars={"day": by_day},
    )
    async with app:
        await made.pools.put(pool)
        yield made


WRONG: list[dict[str, object]] = [
    *({"deadline_s": value} for value in (NAN, INF, HUGE, True, "5", [1])),
    *({"costs": {"tokens": value}} for value in (NAN, INF, -1, HUGE, True, "5", None)),
    *({"costs": value} for value in ([], "abc", 5, {"nope": 1}, {1: 2}, {"": 1})),
    *({"tenant": value} for value in (5, None, ["a"], "a/b", "\ud800", "x" * 47)),
    *({"zone": value} for value in ("No/Where", "../../etc/passwd", 5, "\0", "Europe", "x" * 10_000)),
    *({"reply_to": value} for value in (5, "a b", "\0", "x" * 1_000, "nowhere")),
    *({"id": value} for value in (5, "", "\0", "\ud800", "x" * 1_000)),
    *({"type": value} for value in (5, None, ["t"])),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:40])
@pytest.mark.parametrize("kind", ["t", "h"])
async def test_a_wrong_value_is_refused_in_one_line_and_keeps_no_other_task_out(
    scheduling: Scheduling, kind: str, wrong: dict[str, object]
) -> None:
    given = Submission(**{"type": kind, "payload": b"", **wrong})  # type: ignore[arg-type]
    outcomes = await scheduling.submit_many("p", [Submission("t", b""), given, Submission("t", b"")])
    assert [type(outcome) for outcome in outcomes[::2]] == [Receipt, Receipt]
    assert isinstance(outcomes[1], errors.InvalidMessage | errors.InvalidPool)
    text = str(outcomes[1])
    assert 10 < len(text) < 300
    assert "\n" not in text


@pytest.mark.parametrize("deadline_s", [0, -1, -1e9])
async def test_a_deadline_that_is_over_is_refused(scheduling: Scheduling, deadline_s: float) -> None:
    with pytest.raises(errors.TaskRefused, match="cannot be met") as caught:
        await scheduling.submit("p", "t", b"", deadline_s=deadline_s)
    assert caught.value.code == "deadline"


@pytest.mark.parametrize("name", [5, None, ["p"], "\ud800", "", "a b"])
async def test_the_name_of_a_pool_is_checked(scheduling: Scheduling, name: str) -> None:
    with pytest.raises(errors.InvalidPool):
        await scheduling.submit(name, "t", b"")


@pytest.mark.parametrize("task_id", [5, None, "", "\ud800", "\0"])
async def test_ids_that_no_task_has_are_refused(scheduling: Scheduling, task_id: str) -> None:
    with pytest.raises(errors.InvalidMessage, match="task id"):
        await scheduling.cancel("p", task_id)
    with pytest.raises(errors.InvalidMessage, match="task id"):
        await scheduling.status("p", task_id)


async def test_a_resource_that_works_only_in_the_hours_of_its_calendar_takes_tasks(scheduling: Scheduling) -> None:
    assert (await scheduling.submit("p", "d", b"")).id


async def test_a_pool_that_could_not_be_read_again_is_read_again_later_and_whole(
    scheduling: Scheduling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody expects, between a changed pool and what follows from it, comes once in `REFRESH_S`."""
    submitter, rate, asked = scheduling._submitter("p"), topics.rate, 0
    pool = await submitter.known()

    def broken(pool: Pool, kind: str) -> float:
        nonlocal asked
        asked += 1
        raise RuntimeError("planted")

    await scheduling.pools.put(msgspec.structs.replace(pool, types={**pool.types, "new": TaskType()}))
    monkeypatch.setattr(topics, "rate", broken)
    for _ in range(3):
        submitter._read_at -= REFRESH_S if not asked else 0.0
        await submitter.known()
        await asyncio.wait([submitter._reading])
    assert asked == 1
    monkeypatch.setattr(topics, "rate", rate)
    await submitter._read()
    assert "new" in submitter._rates

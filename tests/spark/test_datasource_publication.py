"""Publishing from tasks that die: nothing is lost, and nothing is published twice but what cannot be known."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from emq.app import App
from emq.producer import Outcome, Outgoing
from emq.runtime import errors
from emq.storage import message
from emq.storage.log_store import Read, Trim
from emq_spark.source import publication as sp
from emq_spark.source.notes import Notes, Piece, Tail

PIECE = Piece("run", 0, 3)


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sp, "LEASE_S", 0.01)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with App(f"sqlite:///{tmp_path}/emq.db") as opened:
        await opened.create_topic("t", 150)
        yield opened


@pytest.fixture
async def notes(app: App) -> AsyncIterator[Notes]:
    opened = await Notes.open(app.settings)
    yield opened
    await opened.close()


def rows(*numbers: int, topic: str = "t", **fields: Any) -> list[Outgoing]:
    return [Outgoing(topic, b"%d" % n, f"run.3.{n}", **fields) for n in numbers]


async def published(app: App) -> Counter[str]:
    """How often each message id lies in the queues."""
    queues = [q for topic in await app.catalog.list() for q in topic.all_queues()]
    found = await app.store.log.read([Read(q, 1, 100_000, None) for q in queues])
    return Counter(
        message.decode(b).id for batch in found if not isinstance(batch, errors.NotOwner) for b in batch.bodies
    )


async def begun(app: App, notes: Notes, attempt: str = "a", per_second: float = 0.0) -> sp.Publication:
    publication = sp.Publication(app, notes, PIECE, attempt, per_second)
    await publication.begin()
    return publication


class Died(Exception):
    """Stands for the end of a task's process."""


@contextlib.asynccontextmanager
async def dying(app: App, after: int) -> AsyncIterator[None]:
    """The task dies when that many of the rows that it sends have been published."""
    send = app.producer.send

    async def die(given: Sequence[Outgoing]) -> list[Outcome]:
        await send(given[:after])
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app.producer, "send", die)
        with pytest.raises(Died):
            yield


async def died(app: App, notes: Notes, attempt: str, stored: int, given: list[Outgoing]) -> None:
    """An attempt dies when so many of its rows have been published."""
    async with dying(app, stored):
        await (await begun(app, notes, attempt)).publish(given)


async def finished(app: App, notes: Notes, attempt: str, given: list[Outgoing]) -> None:
    publication = await begun(app, notes, attempt)
    await publication.publish(given)
    await publication.end()


async def test_a_task_that_is_not_disturbed_publishes_every_row_once(app: App, notes: Notes) -> None:
    publication = await begun(app, notes)
    for start in range(0, 30, 10):
        await publication.publish(rows(*range(start, start + 10), key="k", headers={"a": "b"}))
    await publication.end()
    assert await published(app) == {f"run.3.{n}": 1 for n in range(30)}


@pytest.mark.parametrize("stored", [0, 1, 7, 10])
async def test_a_task_that_died_between_the_put_and_its_note_is_repeated_without_loss_or_double(
    app: App, notes: Notes, stored: int
) -> None:
    first = await begun(app, notes)
    await first.publish(rows(*range(10)))
    async with dying(app, stored):
        await first.publish(rows(*range(10, 20)))
    second = await begun(app, notes, "b")
    await second.publish(rows(*range(7)))  # chunks need not be those of the first attempt
    await second.publish(rows(*range(7, 25)))
    await second.end()
    assert await published(app) == {f"run.3.{n}": 1 for n in range(25)}


async def test_a_third_attempt_finds_what_the_first_two_published(app: App, notes: Notes) -> None:
    for attempt, stored in (("a", 4), ("b", 3)):
        await died(app, notes, attempt, stored, rows(*range(10)))
    await finished(app, notes, "c", rows(*range(10)))
    assert await published(app) == {f"run.3.{n}": 1 for n in range(10)}


async def test_a_put_of_unknown_outcome_is_cleared_up_by_the_same_task(
    app: App, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sp, "TRY_AGAIN_S", 0.0)
    failures, send = [3, 0], app.producer.send

    async def flaky(given: Sequence[Outgoing]) -> list[Outcome]:
        stored = failures.pop(0) if failures else len(given)
        outcomes = await send(given[:stored])
        return outcomes if stored == len(given) else [errors.OutcomeUnknown("the connection broke")] * len(given)

    monkeypatch.setattr(app.producer, "send", flaky)
    publication = await begun(app, notes)
    await publication.publish(rows(*range(10)))
    await publication.end()
    assert await published(app) == {f"run.3.{n}": 1 for n in range(10)}


async def test_an_attempt_that_was_superseded_publishes_nothing_more(app: App, notes: Notes) -> None:
    zombie = await begun(app, notes, "a")
    await zombie.publish(rows(0, 1))
    heir = await begun(app, notes, "b")
    with pytest.raises(errors.EMQError, match="a later attempt"):
        await zombie.publish(rows(2, 3))
    await heir.publish(rows(*range(4)))
    await heir.end()
    assert await published(app) == {f"run.3.{n}": 1 for n in range(4)}


async def test_what_a_superseded_attempt_has_on_its_way_is_waited_for(
    app: App, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sp, "LEASE_S", 0.5)
    sent, send = asyncio.Event(), app.producer.send

    async def slow(given: Sequence[Outgoing]) -> list[Outcome]:
        sent.set()
        await asyncio.sleep(0.2)
        return await send(given)

    monkeypatch.setattr(app.producer, "send", slow)
    zombie = asyncio.create_task((await begun(app, notes, "a")).publish(rows(*range(5))))
    await sent.wait()
    await finished(app, notes, "b", rows(*range(5)))
    await zombie
    assert await published(app) == {f"run.3.{n}": 1 for n in range(5)}


async def test_an_attempt_that_failed_in_order_is_not_waited_for(
    app: App, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sp, "LEASE_S", 60.0)
    first = await begun(app, notes, "a")
    async with dying(app, 1):
        await first.publish(rows(0, 1))
    await first.let_go()
    second = await begun(app, notes, "b")
    await first.let_go()  # as if it had been late: the note is another's now
    await second.publish(rows(0, 1))
    await second.end()
    assert await published(app) == {"run.3.0": 1, "run.3.1": 1}


async def test_an_attempt_that_dawdles_looks_whether_it_was_superseded_before_it_sends_more(
    app: App, notes: Notes
) -> None:
    zombie = await begun(app, notes, "a", per_second=20)
    dawdling = asyncio.create_task(zombie.publish(rows(*range(20))))
    await asyncio.sleep(0.2)
    heir = await begun(app, notes, "b")
    with pytest.raises(errors.EMQError, match="a later attempt"):
        await dawdling
    await heir.publish(rows(*range(20)))
    await heir.end()
    assert await published(app) == {f"run.3.{n}": 1 for n in range(20)}


async def test_a_finished_piece_that_is_repeated_publishes_nothing(app: App, notes: Notes) -> None:
    for attempt in ("a", "b"):
        await finished(app, notes, attempt, rows(*range(10)))
    assert (await published(app)).total() == 10


@pytest.mark.parametrize("other", [rows(1, 0, *range(2, 12)), rows(*range(12), key="other")])
async def test_other_rows_than_the_first_time_fail_the_task_before_any_is_lost(
    app: App, notes: Notes, other: list[Outgoing]
) -> None:
    first = await begun(app, notes, "a")
    await first.publish(rows(*range(10)))
    await first.end()
    with pytest.raises(errors.EMQError, match="other rows than"):
        await (await begun(app, notes, "b")).publish(other)
    shorter = await begun(app, notes, "c")
    await shorter.publish(rows(*range(5)))
    with pytest.raises(errors.EMQError, match="other rows than"):
        await shorter.end()
    assert (await published(app)).total() == 10


@pytest.mark.parametrize("again", [rows(1, 0, 2), rows(0, 1, 2, key="other"), rows(0, 1, 2, topic="u")])
async def test_other_rows_are_found_out_also_where_the_first_attempt_died_before_it_noted_them(
    app: App, notes: Notes, again: list[Outgoing]
) -> None:
    again = [row._replace(id=f"run.3.{n}") for n, row in enumerate(again)]
    await app.create_topic("u", 50)
    await died(app, notes, "a", 3, rows(0, 1, 2))
    with pytest.raises(errors.EMQError, match="other rows than"):
        await (await begun(app, notes, "b")).publish(again)
    assert (await published(app)).total() == 3


async def test_rows_that_share_an_id_are_each_published(app: App, notes: Notes) -> None:
    same = [row._replace(id="same") for row in rows(0, 0, 1)]
    await died(app, notes, "a", 1, same)
    await finished(app, notes, "b", same)
    assert await published(app) == {"same": 3}


async def test_what_was_trimmed_before_anybody_looked_is_published_again(app: App, notes: Notes) -> None:
    await died(app, notes, "a", 10, rows(*range(10), key="one queue"))
    topic = await app.catalog.get("t")
    await app.store.log.trim([Trim(q, 5, None) for q in topic.all_queues()])  # four of the ten
    await finished(app, notes, "b", rows(*range(10), key="one queue"))
    assert await published(app) == {f"run.3.{n}": 1 for n in range(10)}


async def test_rows_of_many_topics_kinds_and_times_go_where_they_belong(app: App, notes: Notes) -> None:
    await app.create_topic("merged", 50, kind="range_merge")
    await app.create_topic("urgent", 50, kind="priority")
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    publication = await begun(app, notes)
    await publication.publish(
        [
            *rows(1, priority="high"),
            *rows(2, at=later),
            *rows(3, topic="merged", at=later),
            *rows(4, topic="urgent", priority="30"),
            *rows(5, ttl_s=60.0),
        ]
    )
    await publication.end()
    assert set(await published(app)) == {"run.3.1", "run.3.5"}
    lag = {entry.topic: entry for entry in await app.admin.slot_lag(await app.catalog.list())}
    assert (lag["t"].delayed, lag["merged"].delayed, lag["urgent"].ready) == (1, 1, 1)
    with pytest.raises(errors.InvalidMessage, match="a number above"):
        await publication.publish(rows(6, topic="urgent", priority="high"))


async def test_a_delayed_row_that_is_repeated_waits_once(app: App, notes: Notes) -> None:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    await died(app, notes, "a", 3, rows(*range(5), at=later))
    await app.producer.publish("t", b"takes the next group's turn")
    await finished(app, notes, "b", rows(*range(5), at=later))
    assert [lag.delayed for lag in await app.admin.slot_lag(await app.catalog.list())] == [5]


async def test_a_paced_publish_takes_its_time(app: App, notes: Notes) -> None:
    publication = await begun(app, notes, per_second=200)
    started = time.monotonic()
    await publication.publish(rows(*range(100)))
    assert time.monotonic() - started > 0.3
    await publication.end()
    assert (await published(app)).total() == 100


async def test_notes_of_a_write_that_is_done_are_dropped_and_those_of_others_stay(app: App, notes: Notes) -> None:
    for run, batch in (("a", 0), ("b", 1), ("b", 2)):
        await notes.claim(Piece(run, batch, 0), "x")
        await notes.save(Piece(run, batch, 0), "x", sp.Note(5, 7, 9, {"q": Tail(3, 9)}))
    await notes.forget("a")
    await notes.forget("b", below=2)
    found = [await notes.claim(Piece(run, batch, 0), "y") for run, batch in (("a", 0), ("b", 1), ("b", 2))]
    assert found == [(sp.Note(), False), (sp.Note(), False), (sp.Note(5, 7, 9, {"q": Tail(3, 9)}), True)]


async def test_a_task_does_not_guess_what_it_had_published_to_a_queue_that_was_made_again(
    app: App, notes: Notes
) -> None:
    first = await begun(app, notes, "a")
    await first.publish(rows(1, 2))
    async with dying(app, after=1):
        await first.publish(rows(3, 4))
    with sqlite3.connect(app.settings.store.removeprefix("sqlite:///")) as store:
        store.execute("DELETE FROM store_messages")
        store.execute("DELETE FROM store_queues")
    await app.publish("t", b"another's")
    second = await begun(app, notes, "b")
    await second.publish(rows(1, 2))
    with pytest.raises(errors.EMQError, match=r"queue 't/0/mid' was lost with its store and made again.*another run"):
        await second.publish(rows(3, 4))
    assert list((await published(app)).values()) == [1]


async def test_rows_published_to_a_queue_that_has_lost_its_last_messages_are_found(app: App, notes: Notes) -> None:
    for n in range(10):
        await app.publish("t", b"another's %d" % n)
    for attempt, stored in (("a", 2), ("b", 3)):
        await died(app, notes, attempt, stored, rows(*range(10)))
        if attempt == "a":
            with sqlite3.connect(app.settings.store.removeprefix("sqlite:///")) as store:
                store.execute("DELETE FROM store_messages WHERE msg_offset > 1")
                store.execute("UPDATE store_queues SET tail = 2 WHERE tail > 2")
    await finished(app, notes, "c", rows(*range(10)))
    assert {id_: n for id_, n in (await published(app)).items() if id_.startswith("run.")} == {
        f"run.3.{n}": 1 for n in range(10)
    }


async def test_a_note_in_another_form_is_named_in_one_line(app: App, notes: Notes) -> None:
    await notes.claim(PIECE, "a")
    with sqlite3.connect(app.settings.store.removeprefix("sqlite:///")) as store:
        store.execute("""UPDATE emq_spark_writes SET tails = '{"t/0/mid": 3}'""")
    with pytest.raises(errors.EMQError, match="a note in another form than this version of EMQ writes") as told:
        await notes.claim(PIECE, "b")
    assert "\n" not in str(told.value)

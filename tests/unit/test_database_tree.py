"""The tree in the database: when sessions of others end, and what an interruption does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from emq.allocation.tree.database import DatabaseTree, sessions
from emq.allocation.tree.database.nodes import Sighting
from emq.allocation.tree.protocol import SessionState
from emq.database import Database
from emq.runtime import errors
from support.waiting import until

TIMEOUT_MS = 6_000


def look(watchman: sessions.Watchman, beat: int, at_s: float) -> bool:
    return bool(watchman.over([Sighting(7, beat, TIMEOUT_MS)], at_s))


def test_a_session_is_over_when_it_was_silent_for_its_time_out_and_not_before() -> None:
    watchman = sessions.Watchman()
    assert not any(look(watchman, 1, t) for t in range(6))
    assert look(watchman, 1, 6)
    assert not look(watchman, 2, 7)
    assert not any(look(watchman, 2, 7 + t) for t in range(6))
    assert look(watchman, 2, 13)


def test_who_has_not_looked_for_a_while_gives_everybody_the_full_time_out_again() -> None:
    watchman = sessions.Watchman()
    for t in range(5):
        look(watchman, 1, t)
    assert not any(look(watchman, 1, t) for t in range(100, 106))
    assert look(watchman, 1, 106)


class Outage:
    """A database that can be made to fail, for one client."""

    def __init__(self, tree: DatabaseTree, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        original = Database.run

        async def run(database: Database, fn: Callable, **options: object) -> object:
            if self.on and database is tree._session.database:
                raise errors.DatabaseUnavailable("away")
            return await original(database, fn, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Database, "run", run)


async def test_an_outage_suspends_a_session_that_goes_on_if_nobody_saw_it_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, states, changes = DatabaseTree(f"sqlite:///{tmp_path}/t.db", 1.0), [], []
    outage = Outage(tree, monkeypatch)
    await tree.open(states.append)
    session = tree.session
    await tree.create("/e", ephemeral=True)
    await tree.read("/e", lambda: changes.append(1))
    outage.on = True
    await until(lambda: states[-1] is SessionState.SUSPENDED)
    with pytest.raises(errors.ClusterUnavailable):
        await tree.read("/e")
    await asyncio.sleep(1.5)  # longer than the session's time-out
    outage.on = False
    await until(lambda: states[-1] is SessionState.CONNECTED)
    assert changes == [1]
    assert tree.session == session
    node = await tree.read("/e")
    assert node is not None
    assert node.session == session
    await tree.close()


async def test_a_session_that_others_saw_silent_is_lost_and_another_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, other, states = (*(DatabaseTree(f"sqlite:///{tmp_path}/t.db", 3.0) for _ in range(2)), [])
    outage = Outage(tree, monkeypatch)
    await tree.open(states.append)
    await other.open(lambda state: None)
    await tree.create("/e", ephemeral=True)
    gone = asyncio.Event()
    await other.read("/e", gone.set)
    begun, outage.on = asyncio.get_running_loop().time(), True
    await asyncio.wait_for(gone.wait(), 30)
    assert await other.read("/e") is None
    assert asyncio.get_running_loop().time() - begun > 2.4
    before, outage.on = tree.session, False
    await until(lambda: tree.session not in (0, before))
    await until(lambda: states[-1] is SessionState.CONNECTED)
    assert states[-3:] == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
    await tree.close()
    await other.close()


async def test_opening_waits_for_a_database_that_is_not_there_yet(tmp_path: Path) -> None:
    tree = DatabaseTree(f"sqlite:///{tmp_path}/later/t.db", 2.0)
    opening = asyncio.create_task(tree.open(lambda state: None))
    await asyncio.sleep(0.3)
    assert not opening.done()
    (tmp_path / "later").mkdir()
    await asyncio.wait_for(opening, 5)
    await tree.close()


@pytest.mark.parametrize("told_breaks", [False, True])
async def test_an_error_that_nobody_expects_ends_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, told_breaks: bool
) -> None:
    tree, states = DatabaseTree(f"sqlite:///{tmp_path}/t.db", 1.0), []

    def told(state: SessionState) -> None:
        states.append(state)
        if told_breaks and state is SessionState.SUSPENDED:
            raise RuntimeError("nobody expected this either")

    await tree.open(told)
    session, breaks = tree.session, [RuntimeError("nobody expected this")]
    real = tree._look

    async def look() -> None:
        if breaks:
            raise breaks.pop()
        await real()

    monkeypatch.setattr(tree, "_look", look)
    await until(lambda: SessionState.SUSPENDED in states)
    await until(lambda: states[-1] is SessionState.CONNECTED)
    assert tree.session == session
    assert "nobody expected this" in caplog.text
    await tree.close()

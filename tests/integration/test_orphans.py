"""A database that was restored from an older copy: messages of topics that it does not know are named and not lost."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

import emq
from emq.host import orphan_watch
from emq.observe.admin import Admin
from emq.offsets import orphans
from emq.runtime import errors
from emq.storage.slot_store import SlotKind
from emq.topics.model import Topic, split
from emq_cli import adoption
from emq_cli.commands import app as cli
from support.waiting import until


class Place:
    """A store and a database that is put back to what it was before most topics were created."""

    def __init__(self, directory: Path) -> None:
        self.store, self.database = f"sqlite:///{directory}/store.db", f"sqlite:///{directory}/catalog.db"
        self._file, self._copy = directory / "catalog.db", directory / "copy.db"

    def app(self) -> emq.App:
        return emq.App(self.store, database=self.database)

    async def restored(self) -> None:
        """Publish to topics of which the restored database knows one, with fewer groups."""
        async with self.app() as app:
            await app.create_topic("known", 10, group_qps=10)
        shutil.copy(self._file, self._copy)
        async with self.app() as app:
            await app.update_topic("known", qps=30)
            await app.publish_many("known", [b"k"] * 9)
            await app.create_topic("shop", 100, group_qps=25)
            await app.publish_many("shop", [b"%d" % i for i in range(40)])
            await app.publish("shop", b"later", delay_ms=200)
            await app.create_topic("timed", 8, kind=emq.Kind.FIXED_TIME, slots=4)
            await app.publish_many("timed", [b"t%d" % i for i in range(12)], delay_ms=3_600_000)
        for file in self._file.parent.glob("catalog.db*"):
            file.unlink()
        shutil.copy(self._copy, self._file)


@pytest.fixture
async def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    await made.restored()
    return made


def run(place: Place, *words: str) -> str:
    done = CliRunner().invoke(cli, [*words, "--store", place.store, "--database", place.database])
    assert done.exit_code == 0, done.output
    return done.output


async def test_what_the_catalog_does_not_know_is_listed_adopted_and_purged(place: Place) -> None:
    listed = json.loads(await asyncio.to_thread(run, place, "store", "orphans", "--json"))
    found = {row["topic"]: row for row in listed}
    assert set(found) == {"known", "shop", "timed"}
    assert (found["shop"]["groups"], found["shop"]["ready"], found["shop"]["delayed"]) == (4, 40, 1)
    assert (found["timed"]["kind"], found["timed"]["ready"]) == ("sorted", 12)
    assert (found["known"]["groups"], found["known"]["ready"], found["known"]["remedy"]) == (3, 6, "grow it")
    assert "purged 12 messages" in await asyncio.to_thread(run, place, "store", "orphans", "--purge", "timed", "--yes")
    async with place.app() as app:
        for qps in (3.9, 601):
            with pytest.raises(errors.InvalidTopic, match=f"4 groups of its messages can make 4 to .* not {qps:g};"):
                await adoption.adopt(app.admin, "shop", qps)
    await asyncio.to_thread(run, place, "store", "orphans", "--adopt", "shop", "--qps", "100")
    handled: set[bytes] = set()
    app = place.app()

    @app.handler("shop")
    async def handle(m: emq.Message) -> None:
        handled.add(m.payload)

    async with app:
        host = asyncio.create_task(app.run())
        await until(lambda: len(handled) == 41)
        app.stop()
        await host
        assert [orphan.topic for orphan in await adoption.find(app.admin)] == ["known"]
        with pytest.raises(errors.TopicExists, match="which need 3; raise its qps to more than 2 times its group_qps"):
            await adoption.adopt(app.admin, "known", 10)
        await app.update_topic("known", qps=30)
        assert await adoption.find(app.admin) == []
        with pytest.raises(errors.UnknownTopic):
            await adoption.adopt(app.admin, "nothing", 10)


async def test_a_topic_that_is_created_again_with_other_places_hides_no_messages(place: Place) -> None:
    async with place.app() as app:
        await app.create_topic("shop", 100, priorities=("vip", "std"))
        await app.create_topic("timed", 8, group_qps=2)  # as many groups, in queues
        await app.update_topic("known", qps=30)
        before = {orphan.topic: orphan for orphan in await adoption.find(app.admin)}
        assert set(before) == {"shop", "timed"}
        assert all(orphan.is_known and not orphan.is_beyond for orphan in before.values())
        assert (before["shop"].ready, before["timed"].messages) == (40, 12)
        for change in (adoption.adopt(app.admin, "timed", 8), adoption.purge(app.admin, "timed")):
            with pytest.raises(errors.TopicExists, match=r"another kind or other priorities .* delete this topic"):
                await change
        await app.admin.delete("timed", force=True)
        assert await adoption.purge(app.admin, "timed") == 12
        assert [orphan.topic for orphan in await adoption.find(app.admin)] == ["shop"]


async def test_queues_and_slots_under_one_name_are_two_orphans(place: Place) -> None:
    known = {"known": Topic("known", 30, group_qps=10)}
    async with place.app() as app:
        await app.create_topic("timed", 8)
        await app.publish_many("timed", [b"x"] * 5)
        await app.create_topic("shop", 8, kind=emq.Kind.RANGE_MERGE, slots=2)
        await app.publish_many("shop", [b"%d" % i for i in range(5)], time_range_ms=1000)
        store = app.store
        found = await orphans.find(store, {name: split(topic) for name, topic in known.items()})
        assert [(o.topic, o.is_sorted, o.messages) for o in found] == [
            ("shop", False, 41),
            ("shop", True, 5),
            ("timed", False, 5),
            ("timed", True, 12),
        ]
        for name in ("timed", "shop"):
            await app.catalog.delete(name)  # as a restored database has it
        adopted = await adoption.adopt(app.admin, "timed", 8, kind=SlotKind.FIXED_TIME)
        assert (adopted.slots, [o.messages for o in await adoption.find(app.admin) if o.topic == "timed"]) == (4, [5])
        assert await adoption.purge(app.admin, "shop") == 46
        assert "shop" not in [orphan.topic for orphan in await adoption.find(app.admin)]


async def test_of_two_who_purge_at_once_both_succeed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    both, find = asyncio.Barrier(2), adoption.find

    async def find_together(admin: Admin) -> list[orphans.Orphan]:
        found = await find(admin)
        await both.wait()
        return found

    async with place.app() as first, place.app() as second:
        with monkeypatch.context() as patched:
            patched.setattr(adoption, "find", find_together)
            purged = await asyncio.gather(*(adoption.purge(app.admin, "timed") for app in (first, second)))
        assert purged == [12, 12]
        assert "timed" not in {orphan.topic for orphan in await adoption.find(first.admin)}


async def test_the_log_of_a_host_names_them(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(orphan_watch, "SOON_S", 0.1)
    app = place.app()
    app.handler("*")(_ignore)
    async with app:
        host = asyncio.create_task(app.run())
        await until(lambda: "see emq store orphans" in caplog.text)
        assert "known (6), shop (41), timed (12); see emq store orphans" in caplog.text
        app.stop()
        await host


async def _ignore(m: emq.Message) -> None:
    """Nothing is published to it."""


def test_a_topic_is_adopted_only_if_all_its_messages_are_in_it() -> None:
    orphan = orphans.Orphan("shop", False, False, 7, ("high", "vip"), 3, 0, 0)
    with pytest.raises(errors.InvalidTopic, match="have the priorities high, vip; name all"):
        orphans.topic_of(orphan, 100)
    topic = split(orphans.topic_of(orphan, 100, ["vip", "high", "low"]))
    assert (topic.groups, topic.priorities) == (7, ("vip", "high", "low"))
    for groups in (1, 3, 6, 7, 49, 333):
        wider = msgspec.structs.replace(orphan, groups=groups)
        assert split(orphans.topic_of(wider, 1000, ["vip", "high"])).groups == groups
    slots = orphans.Orphan("shop", False, True, 5, (), 3, 0, 0)
    with pytest.raises(errors.InvalidTopic, match="does not tell its kind; name it"):
        orphans.topic_of(slots, 100)
    assert split(orphans.topic_of(slots, 100, kind=SlotKind.RANGE_MERGE)).groups == 8

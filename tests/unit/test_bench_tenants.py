"""The benchmark of tenants counts what is there, and does not wait for what cannot come."""

from __future__ import annotations

from pathlib import Path

import pytest

import emq
from bench.cluster.crew import InvalidRun
from bench.support.stage import Stage, kind_of
from bench.tenants import family, starts, tenants, traces
from bench.tenants import plan as plan_part
from bench.tenants.starts import StartFile
from emq.topics.model import Topic


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ("sqlite", "sqlite"),
        ("sqlite:///emq.db", "sqlite"),
        ("postgresql://user:secret@localhost/emq", "postgres"),
        ("rediss://localhost", "redis"),
        ("redis+cluster://localhost", ""),
    ],
)
def test_a_store_is_named_by_its_kind_or_its_url(store: str, kind: str) -> None:
    assert kind_of(store) == kind


async def test_names_of_the_family_alone_are_counted_in_store_and_database() -> None:
    with Stage("sqlite", quiet=True) as stage:
        async with stage.app() as app:
            await family.create(app, most=10, idle_s=None)
            await app.admin.create([Topic("other", 1.0), Topic("tenant-of-nobody", 1.0)])
            await app.publish("other", b"x")
            before = await traces.found(app, stage)
            assert sum(before.rows.values()) == 0
            await family.publish(app, range(3))
            found = (await traces.found(app, stage)).beyond(before)
            assert found.rows == {"emq_topics": 3}
            assert (found.keys["store_messages"], found.keys["store_queues"]) == (3, 9)
            assert traces.text(found.rows) == "emq_topics 3"


async def test_topics_of_the_family_are_made_with_and_without_a_setting_of_their_own() -> None:
    with Stage("sqlite", quiet=True) as stage:
        async with stage.app() as app:
            await family.create(app, most=10, idle_s=None)
        await family.make(stage, 3)
        async with stage.app() as app:
            made = await app.catalog.list()
            assert [(topic.name, topic.family, topic.own) for topic in made] == [
                (family.name_of(number), family.NAME, ()) for number in range(3)
            ]
            with pytest.raises(InvalidRun, match="hold nothing"):
                await family.create(app, most=10, idle_s=None)
    with Stage("sqlite", quiet=True) as stage:
        async with stage.app() as app:
            await family.create(app, most=10, idle_s=None)
        await family.make(stage, 2, asleep=True)
        async with stage.app() as app:
            assert [topic.own for topic in await app.catalog.list()] == [("qps",), ("qps",)]


async def test_a_publish_that_the_family_refuses_is_no_figure() -> None:
    with Stage("sqlite", quiet=True) as stage:
        async with stage.app() as app:
            await family.create(app, most=1, idle_s=None)
            with pytest.raises(emq.FamilyFull):
                await family.publish(app, range(2))


def test_the_first_start_of_a_message_counts(tmp_path: Path) -> None:
    path = tmp_path / "starts"
    assert (starts.count(path), starts.read(path)) == (0, {})
    file = StartFile(path)
    for number in (7, 8, 7):
        file.add(number)
    assert starts.count(path) == 3
    found = starts.read(path)
    assert list(found) == [7, 8]
    assert found[7] <= found[8]


def test_a_join_writes_the_lists_that_change_and_the_record() -> None:
    quotas = {f"{family.name_of(number)}/0": 10.0 for number in range(300)}
    members = {name: plan_part.member(name, seed) for seed, name in enumerate(("a", "b", "c"))}
    full = plan_part.planned(quotas, members, None, plan_part.BEGIN_US)
    assert (full.changed, full.moved, full.writes) == (3, 300, 4)
    again = plan_part.planned(quotas, members, full, plan_part.BEGIN_US + 1)
    assert (again.moved, again.bytes < full.bytes) == (0, True)
    joined = plan_part.planned(
        quotas, {**members, "d": plan_part.member("d", 4)}, full, plan_part.BEGIN_US + 60_000_000
    )
    assert 50 < joined.moved < 100
    assert joined.changed == 4
    assert joined.writes == 5
    assert len(joined.record.lists) == 4


async def test_a_part_takes_its_own_sizes_which_are_above_zero() -> None:
    options = {"part": "plan", "patience": 1.0, "plan_tenants": 5, "plan_hosts": 0, "rows_topics": 5}
    assert tenants.concerning(options).keys() == {"part", "patience", "plan_tenants", "plan_hosts"}
    with Stage("sqlite", quiet=True) as stage:
        with pytest.raises(InvalidRun, match="--plan-hosts: 0 is too small"):
            await tenants.run(stage, **options)
        with pytest.raises(InvalidRun, match="choose one of first, strangers, rows, awake, plan"):
            await tenants.run(stage, **{**options, "part": "rest"})

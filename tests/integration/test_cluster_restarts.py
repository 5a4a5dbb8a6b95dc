"""Hosts that come and go in good order or not: nothing is lost, and only crashes repeat anything."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import emq_servers as servers
from support import cluster, cluster_receipts
from support.cluster import Cluster, Note, Place


@pytest.fixture
def place(zookeeper_ensemble: servers.Ensemble, redis_url: str, tmp_path: Path) -> Iterator[Place]:
    with cluster.place_on(zookeeper_ensemble, redis_url, tmp_path) as place:
        yield place


@pytest.fixture
def place_on_postgres(
    zookeeper_ensemble: servers.Ensemble, redis_url: str, postgres_url: str, tmp_path: Path
) -> Iterator[Place]:
    with cluster.place_on(zookeeper_ensemble, redis_url, tmp_path, postgres_url=postgres_url) as place:
        yield place


@pytest.mark.parametrize(("bounces", "new_first"), [(4, False), (2, True)], ids=["stop first", "new first"])
async def test_a_rolling_restart_repeats_nothing_and_moves_no_group_twice_in_one_bounce(
    place: Place, tmp_path: Path, bounces: int, new_first: bool, record_property: Note
) -> None:
    # Sessions are long, so that no host looks as if it had crashed where the machine is only busy.
    async with Cluster(place, tmp_path, session_timeout_s=15.0, note=record_property) as hosts, hosts.load(clean=True):
        members = await hosts.started(4)
        await hosts.until_spread(*members)
        for leaving in members[:bounces]:
            began_us = cluster.now_us()
            if new_first:
                coming = hosts.start()
                await hosts.until_working(coming)
                assert await leaving.stop() == 0
            else:
                leaving.expected = False
                leaving.signal(signal.SIGTERM)
                coming = hosts.start()
                assert await leaving.wait() == 0
                await hosts.until_working(coming)
            await hosts.until_spread(*(host for host in hosts.hosts if host.expected))
            moved = dict(cluster_receipts.moves(hosts.receipts(), began_us, cluster.now_us()))
            assert moved
            assert max(moved.values()) == 1, {group: n for group, n in moved.items() if n > 1}


async def test_twenty_joins_and_leaves_clean_or_by_kill_lose_nothing(
    place_on_postgres: Place, tmp_path: Path, record_property: Note
) -> None:
    chance = random.Random(4)
    async with Cluster(place_on_postgres, tmp_path, note=record_property) as hosts, hosts.load():
        members = await hosts.started(2)
        for change in range(20):
            if len(members) < 2 or (len(members) < 5 and change % 2 == 0):
                members.append(hosts.start())
            else:
                leaving = members.pop(chance.randrange(len(members)))
                if chance.random() < 0.5:
                    hosts.kill(leaving)
                else:
                    leaving.expected = False
                    leaving.signal(signal.SIGTERM)
            await asyncio.sleep(chance.uniform(0.3, 1.3))
        await hosts.until_working(*members, since_us=cluster.now_us())
        assert len(hosts.crashes) > 2
    for host in hosts.hosts:
        if host not in members and host.name not in {crash.host for crash in hosts.crashes}:
            # One that was told to stop before it had begun with anything just ends.
            assert await host.wait() in ((0,) if host.logged else (0, -signal.SIGTERM))

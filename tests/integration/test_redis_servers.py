"""Whole hosts on a list of real servers without a cluster: a server that joins or leaves under load, one that dies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_redis_cluster import QPS, Load
from test_redis_cluster_parts import GAP_S, LOG_GROUPS, SLOTS
from test_redis_cluster_parts import Load as PartsLoad

import emq_servers as servers
from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage.lane_store import LaneAdd, LaneClaim
from emq.storage.log_store import Put, Read
from emq.storage.opening import open_store
from emq.storage.store import Store
from emq_stores.redis import moving
from emq_stores.redis.cluster import hash_slot
from emq_stores.redis.keys import LIST_RANGES, SERVERS, SlotKeys, cluster_shards, shard_of
from emq_stores.redis.moving import ListedStore, planned
from emq_stores.redis.opening import CLUSTER_SHARDS
from emq_stores.redis.server_list import entry, range_of
from support.emq_shell import Shell
from support.redis_servers.listed import ListedServers, start_listed
from support.redis_servers.node import RedisNode
from support.waiting import until

QUEUES = [f"t/{group}/high" for group in range(200)]

pytestmark = pytest.mark.usefixtures("redis_url")  # skips where no server is installed


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[ListedStore]:
    store = await open_store(url, Environment.ONLINE)
    assert isinstance(store, ListedStore)
    try:
        yield store
    finally:
        await store.close()


async def spread(listed: ListedServers, nodes: Sequence[RedisNode]) -> Counter[tuple[str, str]]:
    """Spread the store over the nodes; return the number of ranges that were moved from each to each."""
    async with opened(listed.url_of(nodes)) as store:
        return Counter([(moved.source, moved.target) async for moved in store.spread()])


def ranges(node: RedisNode) -> list[str]:
    """Return the address of the server of each range, by the record of a node."""
    found = node.ask("HGETALL", SERVERS)
    record = dict(zip(found[::2], found[1::2], strict=True))
    return [record[str(number)] for number in range(LIST_RANGES)]


async def put_all(store: Store, body: bytes) -> list[int]:
    """Put a message in each queue; return its offsets."""
    answers = await store.log.put([Put(queue, [body]) for queue in QUEUES])
    return [answer[0] if not isinstance(answer, Exception) else -1 for answer in answers]


async def bodies(store: Store) -> list[Sequence[bytes]]:
    answers = await store.log.read([Read(queue, 1, 100, 1) for queue in QUEUES])
    return [() if isinstance(answer, Exception) else answer.bodies for answer in answers]


async def test_a_server_is_added_and_another_removed_under_load_and_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    with start_listed() as listed:
        first, second = listed.nodes
        load = Load(listed.url, tmp_path)
        async with load.running():
            await load.more(30)
            third = await asyncio.to_thread(listed.add)
            moved = await spread(listed, listed.nodes)
            await load.more(30)
            assert set(moved) == {(first.address, third.address), (second.address, third.address)}
            moved = await spread(listed, [second, third])
            await load.more(30)
            assert set(moved) == {(first.address, second.address), (first.address, third.address)}
            for _ in range(20):  # a range is on its way for so short a time that a busy machine may see no call to it
                if "_TRYAGAIN" in _told(listed):
                    break
                await spread(listed, listed.nodes)
                await spread(listed, [second, third])
            await load.more(30)
        assert first.ask("KEYS", "*") == [SERVERS]
        assert Counter(ranges(second)) == {second.address: 32, third.address: 32}
        assert "_MOVED" in _told(listed), "no call met a range that had moved; the test tried nothing"
        assert "_TRYAGAIN" in _told(listed), "no call met a range on its way; the test tried nothing"
    assert not load.unknown
    assert not load.refused
    assert set(load.handled) == load.known
    assert max(load.handled.values()) == 1
    assert max(load.starts.values()) <= QPS


def _told(listed: ListedServers) -> str:
    """Return which errors the servers have answered, with their counts."""
    return "".join(node.ask("INFO", "errorstats") for node in listed.nodes)


@pytest.mark.parametrize("lose", [servers.Server.kill, servers.Server.pause])
async def test_a_server_that_is_down_or_silent_costs_its_own_groups_only(
    lose: Callable[[servers.Server], None], tmp_path: Path
) -> None:
    with start_listed(appendonly=True) as listed:
        load = PartsLoad(listed.url, tmp_path)
        places = [*(("log", g) for g in range(LOG_GROUPS)), *(("sorted", g) for g in range(SLOTS))]
        async with load.running():
            await until(lambda: all(len(load.starts.get(place, ())) > 3 for place in places))
            kept, lost = listed.nodes
            served = ranges(kept)
            theirs = {place for place in places if served[_range(*place)] == lost.address}
            assert 0 < len(theirs) < len(places)
            await asyncio.to_thread(lose, lost)
            since = time.monotonic()
            await asyncio.sleep(6)
            gaps = {place: load.gap_s(place, since) for place in set(places) - theirs}
            assert max(gaps.values()) < GAP_S, gaps
            await until(lambda: load.failed, 15)
            if lost.running:
                lost.resume()
            else:
                await asyncio.to_thread(lost.restart)
            since = time.monotonic()
            await until(lambda: all(any(at > since for at in load.starts.get(place, ())) for place in theirs))


def _range(topic: str, group: int) -> int:
    shards = cluster_shards("online", CLUSTER_SHARDS)
    is_sorted = topic == "sorted"
    key = SlotKeys("online", f"{topic}/{group}").store if is_sorted else shards[shard_of(f"{topic}/{group}", 64)].head
    return range_of(hash_slot(key))


Step = Callable[[pytest.MonkeyPatch], None]


def break_at(name: str, times: int) -> Step:
    """Return a step that lets a method of the move fail at its n-th call, as if the process had been killed."""

    def step(monkeypatch: pytest.MonkeyPatch) -> None:
        whole: Callable[..., Awaitable[Any]] = getattr(moving._Move, name)
        calls = 0

        async def broken(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= times:
                raise Killed
            return await whole(*args)

        async def killed(_: moving._Move) -> None:
            raise Killed

        monkeypatch.setattr(moving._Move, name, broken)
        monkeypatch.setattr(moving._Move, "_give_back", killed)

    return step


class Killed(BaseException):
    """Ends a move as a kill would: every later step of the move fails, too."""


# The calls of `_note`: leave at the source; freeze at source and target; source again; hand over at the target.
# Those of `_agree`: leave at the target and the other server; handed over at the source and the other server.
@pytest.mark.parametrize(
    "step",
    [
        *(break_at("_note", n) for n in range(1, 6)),
        *(break_at("_agree", n) for n in range(1, 5)),
        *(break_at("_copy", n) for n in (1, 2)),
    ],
)
async def test_a_move_that_was_killed_at_any_step_is_ended_by_the_next_and_loses_nothing(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_listed(3) as listed:
        async with opened(listed.url_of(listed.nodes[:2])) as store:
            assert await put_all(store, b"before") == [1] * 200
            await store.lanes.add([LaneAdd("t/1", "a", b"waits", 1)])
            with monkeypatch.context() as broken:
                step(broken)
                with pytest.raises(Killed):
                    await spread(listed, listed.nodes)
            await spread(listed, listed.nodes)
            assert await put_all(store, b"after") == [2] * 200
            assert await bodies(store) == [[b"before", b"after"]] * 200
            [claimed] = await store.lanes.claim([LaneClaim("t/1", 5, 1)], 10)
            assert not isinstance(claimed, Exception)
            assert claimed.entries == [("a", b"waits")]
        records = [ranges(node) for node in listed.nodes]
        assert records[0] == records[1] == records[2]
        assert sorted(Counter(records[0]).values()) == [21, 21, 22]
        for node in listed.nodes:
            keys = [key for key in node.ask("KEYS", "*") if not key.startswith(SERVERS)]
            assert all(records[0][range_of(hash_slot(key))] == node.address for key in keys), "a copy was left"


async def test_a_slow_move_that_another_took_over_changes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_listed(3) as listed:
        copied, go_on = [asyncio.Event(), asyncio.Event()], [asyncio.Event(), asyncio.Event()]
        note, copy = moving._Move._note, moving._Move._copy

        async def slow_note(move: moving._Move, version: int, value: str, *more: Any) -> None:
            if value == move._target and not copied[0].is_set():  # about to hand over
                copied[0].set()
                await go_on[0].wait()
            await note(move, version, value, *more)

        async def slow_copy(move: moving._Move) -> None:
            await copy(move)
            if copied[0].is_set() and not copied[1].is_set():
                copied[1].set()
                await go_on[1].wait()

        monkeypatch.setattr(moving._Move, "_note", slow_note)
        monkeypatch.setattr(moving._Move, "_copy", slow_copy)
        async with opened(listed.url_of(listed.nodes[:2])) as store:
            await put_all(store, b"a")
            first = asyncio.create_task(spread(listed, listed.nodes))
            await copied[0].wait()
            second = asyncio.create_task(spread(listed, listed.nodes))
            await copied[1].wait()
            go_on[0].set()
            with pytest.raises(errors.ChangedMeanwhile, match="somebody else moves range"):
                await first
            go_on[1].set()
            await second
            assert await put_all(store, b"b") == [2] * 200
            assert await bodies(store) == [[b"a", b"b"]] * 200


async def test_a_failed_copy_leaves_the_range_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_listed() as listed:
        async with opened(listed.url) as store:
            await put_all(store, b"a")
            full = await asyncio.to_thread(listed.add)
            full.ask("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(errors.StoreFull):
                await spread(listed, listed.nodes)
            assert await put_all(store, b"b") == [2] * 200


async def test_two_moves_that_ended_at_once_leave_one_owner() -> None:
    with start_listed() as listed:
        a, b = listed.nodes
        async with opened(listed.url) as store:
            await put_all(store, b"a")
            number = ranges(a).index(a.address)
            a.ask("HSET", SERVERS, number, f"{a.address} frozen", f"{number}:version", 3)
            b.ask("HSET", SERVERS, number, b.address, f"{number}:version", 3)
            await spread(listed, listed.nodes)
            assert ranges(a) == ranges(b)
            assert -1 not in await put_all(store, b"b")


async def test_a_server_that_lost_all_gets_its_record_back_and_serves_again() -> None:
    with start_listed() as listed:
        async with opened(listed.url) as store:
            await put_all(store, b"a")
            before = ranges(listed.nodes[0])
            listed.nodes[1].ask("FLUSHALL")
            lost = before.count(listed.nodes[1].address)
            assert lost == 32
            offsets = await put_all(store, b"b")
            assert set(offsets) == {1, 2}
            assert ranges(listed.nodes[1]) == before


async def test_a_server_that_lost_all_waits_for_one_that_may_know_more() -> None:
    with start_listed(3) as listed:
        a, b, _ = listed.nodes
        async with opened(listed.url) as store:
            await put_all(store, b"a")
            b.kill()
            a.ask("FLUSHALL")
            assert -1 in await put_all(store, b"b")
            assert a.ask("EXISTS", SERVERS) == 0
            await asyncio.to_thread(b.restart)


async def test_a_move_opens_no_range_that_another_move_has_closed() -> None:
    with start_listed() as listed:
        a, b = listed.nodes
        async with opened(listed.url) as store:
            servers, addresses = store._servers, [a.address, b.address]
            number = ranges(a).index(a.address)
            known, frozen = servers.entries[str(number)], entry(2, f"{a.address} other")
            for address in addresses:
                await servers.note(address, {str(number): frozen})
            with pytest.raises(errors.ChangedMeanwhile):
                await moving._Move(servers, addresses, number, known, b.address).carry_out()
            assert ranges(a)[number] == frozen.value
            b.kill()  # it may have taken the range over from the other move
            with pytest.raises(errors.StoreUnavailable):
                await servers.lift(number, frozen)
            assert " " in ranges(a)[number]


async def test_a_process_that_knows_an_old_list_is_led_to_the_servers_of_now() -> None:
    with start_listed(4) as listed:
        a, b, c, d = listed.nodes
        async with opened(listed.url_of([a, b])) as old:
            await put_all(old, b"a")
            await spread(listed, [b, c])
            await spread(listed, [c, d])
            assert await bodies(old) == [[b"a"]] * 200
            async with opened(listed.url_of([a])) as late:  # a has nothing any more, and its record leads on
                assert await bodies(late) == [[b"a"]] * 200
                assert len((await late.holding()).queues) == 200


async def test_servers_of_different_stores_are_refused(redis_url: str) -> None:
    with start_listed(4) as listed:
        a, b, c, d = listed.nodes
        for nodes in ([a, b], [c, d]):
            async with opened(listed.url_of(nodes)):
                pass
        with pytest.raises(errors.InvalidSettings, match=r"different lists of servers; correct the URL"):
            await open_store(listed.url_of([a, c]), Environment.ONLINE)
        with pytest.raises(errors.InvalidSettings, match=r"one server of a list; open it with redis\+servers"):
            await open_store(a.url, Environment.ONLINE)
        alone = await asyncio.to_thread(listed.add)
        await (await open_store(alone.url, Environment.ONLINE)).close()
        with pytest.raises(errors.InvalidSettings, match=r"holds other data, which would be deleted"):
            await spread(listed, [a, alone])
        cache = await asyncio.to_thread(listed.add)
        cache.ask("SET", "of another program", "x")
        for nodes in ([a, cache], [cache]):
            with pytest.raises(errors.InvalidSettings, match=r"holds other data, which would be deleted"):
                await spread(listed, nodes)
        assert cache.ask("GET", "of another program") == "x"
        fresh = await asyncio.to_thread(listed.add)
        twice = f"redis+servers://{fresh.address},localhost:{fresh.port}"
        with pytest.raises(errors.InvalidSettings, match=r"are one server; leave one out"):
            await open_store(twice, Environment.ONLINE)
        with pytest.raises(errors.InvalidSettings, match=r"name the other as it was named when it joined"):
            async with opened(listed.url_of([a, b]).replace("127.0.0.1", "localhost")) as store:
                assert [moved async for moved in store.spread()]


async def test_a_new_list_needs_all_of_its_servers_and_a_known_one_needs_one() -> None:
    with start_listed() as listed:
        down = listed.nodes[1]
        down.kill()
        with pytest.raises(errors.StoreUnavailable, match=r"for the first time, so all of its servers must answer"):
            await open_store(listed.url, Environment.ONLINE)
        await asyncio.to_thread(down.restart)
        async with opened(listed.url):
            pass
        down.kill()
        async with opened(listed.url) as store:
            assert sorted(set(await put_all(store, b"a"))) == [-1, 1]


async def test_processes_that_open_a_new_list_at_once_agree() -> None:
    with start_listed(3) as listed:
        urls = [listed.url_of(nodes) for nodes in (listed.nodes, listed.nodes[::-1])] * 4
        stores = [await opening for opening in asyncio.as_completed([open_store(u, Environment.ONLINE) for u in urls])]
        for number, store in enumerate(stores):
            assert await put_all(store, b"x") == [number + 1] * 200
            await store.close()


def test_the_command_spreads_and_says_what_it_moved() -> None:
    emq_shell = Shell()
    with start_listed(3) as listed:
        emq_shell(f"store spread --store {listed.url_of(listed.nodes[:2])}")
        out = emq_shell(f"store spread --store {listed.url} --json")
        assert out.count('"parts"') == 2, out
        assert "nothing to move" in emq_shell(f"store spread --store {listed.url}")


@pytest.mark.parametrize(
    ("now", "wanted", "moves"),
    [
        ("ab", "ab", 0),
        ("ab", "abc", 21),
        ("abc", "ab", 21),
        ("a", "abcd", 48),
        ("ab", "cd", 64),
    ],
)
def test_a_plan_is_even_and_moves_no_range_without_need(now: str, wanted: str, moves: int) -> None:
    before = [now[number * len(now) // LIST_RANGES] for number in range(LIST_RANGES)]
    plan = planned({str(n): entry(1, address) for n, address in enumerate(before)}, list(wanted))
    counts = Counter(plan)
    assert set(counts) == set(wanted)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert sum(a != b for a, b in zip(before, plan, strict=True)) == moves

"""Sorted topics on Redis as other programs see them: the published layout, literally, and strangers at work on it."""

from __future__ import annotations

import itertools
import json
import os
import sys
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.storage import folds
from emq.storage.opening import open_store
from emq.storage.slot_store import (
    Entry,
    Fold,
    Keep,
    Recover,
    Slot,
    SlotAdd,
    SlotClaim,
    SlotClaimed,
    SlotKind,
    SlotSettle,
    SlotVerdict,
)
from emq.storage.store import Store
from emq_stores.redis.keys import SlotKeys

NOW = 1_700_000_000_000

_count = itertools.count(1)

RANGE_MERGE_ADD = (
    "if redis.call('ZSCORE', KEYS[1], ARGV[2]) then return 0 end return redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])"
)


@pytest.fixture
def topic() -> str:
    return f"prices{os.getpid()}-{next(_count)}"


@pytest.fixture
def server(redis_url: str) -> Iterator[redis.Redis]:
    """What a person at redis-cli has."""
    client = redis.Redis.from_url(redis_url, protocol=2)
    yield client
    client.close()


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    opened = await open_store(redis_url, Environment.ONLINE)
    yield opened
    await opened.close()


def slot_of(topic: str, kind: SlotKind = SlotKind.FIXED_TIME, index: int = 3, apart: bool = False) -> Slot:
    return Slot(f"{topic}/{index}", kind, apart)


async def claim(store: Store, slot: Slot, limit: int = 10, epoch: int = 1, now_ms: int = NOW) -> SlotClaimed:
    (answer,) = await store.sorted.claim([SlotClaim(slot, limit, epoch, now_ms)], now_ms)
    assert isinstance(answer, SlotClaimed), answer
    return answer


async def settle(store: Store, slot: Slot, entry: Entry, verdict: SlotVerdict, **more: Any) -> None:
    assert await store.sorted.settle([SlotSettle(slot, entry.member, verdict, entry.token, 1, **more)]) == [True]


def shown(server: redis.Redis, key: str) -> list[Any]:
    """A sorted set as `ZRANGE key 0 -1 WITHSCORES` prints it."""
    return [(member, int(score)) for member, score in server.zrange(key, 0, -1, withscores=True)]


# ----------------------------------------------------------------------------------------------------------- the layout


@pytest.mark.parametrize(
    ("kind", "keep", "first", "again", "stays"),
    [
        (SlotKind.RANGE_MERGE, Keep.FIRST, NOW - 500, NOW - 100, NOW - 500),
        (SlotKind.FIXED_TIME, Keep.LAST, NOW - 500, NOW - 100, NOW - 100),
        (SlotKind.PRIORITY, Keep.LAST, 17, 300, 300),
    ],
)
async def test_a_message_lies_under_the_published_keys_with_the_published_scores(
    store: Store, server: redis.Redis, topic: str, kind: SlotKind, keep: Keep, first: int, again: int, stays: int
) -> None:
    slot = slot_of(topic, kind)
    assert await store.sorted.add([SlotAdd(slot, b"sku-1", first, keep)]) == [True]
    assert shown(server, f"{topic}_3") == [(b"sku-1", first)]
    assert await store.sorted.add([SlotAdd(slot, b"sku-1", again, keep)]) == [False]
    assert shown(server, f"{topic}_3") == [(b"sku-1", stays)]
    (entry,) = (await claim(store, slot, now_ms=NOW + 789)).entries
    assert entry == Entry(b"sku-1", stays, NOW + 16, b"sku-1")
    assert server.exists(f"{topic}_3") == 0
    assert shown(server, f"prepare{{{topic}_3}}") == [(b"sku-1", NOW + 16)]
    await settle(store, slot, entry, SlotVerdict.DEAD, reason="gone")
    assert server.exists(f"prepare{{{topic}_3}}") == 0
    ((member, died_ms),) = shown(server, f"dead{{{topic}_3}}")
    assert member == b"sku-1"
    assert died_ms > NOW
    kept = {key.decode() for key in server.keys(f"*{topic}*")}
    assert kept == {f"dead{{{topic}_3}}", f"emq{{{topic}_3}}", f"reason{{{topic}_3}}"}


async def test_an_acknowledged_message_leaves_nothing_but_the_slots_own_hash(
    store: Store, server: redis.Redis, topic: str
) -> None:
    slot = slot_of(topic)
    await store.sorted.add([SlotAdd(slot, b"x", NOW - 1, Keep.LAST)])
    (entry,) = (await claim(store, slot)).entries
    await settle(store, slot, entry, SlotVerdict.RETRY, score=16, reason="first")
    (entry,) = (await claim(store, slot)).entries
    await settle(store, slot, entry, SlotVerdict.ACK)
    assert server.keys(f"*{topic}*") == [f"emq{{{topic}_3}}".encode()]
    own = server.hgetall(f"emq{{{topic}_3}}")
    assert own[b"epoch"] == b"1"
    assert own[b"armed"] == b""


async def test_failures_can_be_read_by_anybody(store: Store, server: redis.Redis, topic: str) -> None:
    slot, odd = slot_of(topic), 'broke:\n"caf\u00e9" \\ 100 %'
    await store.sorted.add([SlotAdd(slot, b"x", NOW - 1, Keep.LAST)])
    for reason in (odd, "second"):
        (entry,) = (await claim(store, slot)).entries
        await settle(store, slot, entry, SlotVerdict.RETRY, score=entry.left, reason=reason)
    lines = server.hget(f"history{{{topic}_3}}", "x").decode().split("\n")  # type: ignore[union-attr]
    assert [json.loads(line.partition(" ")[2]) for line in lines] == [odd, "second"]
    (entry,) = (await claim(store, slot)).entries
    await settle(store, slot, entry, SlotVerdict.DEAD, reason="third")
    assert server.exists(f"history{{{topic}_3}}") == 0
    reason, *before = server.hget(f"reason{{{topic}_3}}", "x").decode().split("\n")  # type: ignore[union-attr]
    assert (json.loads(reason), before) == ("third", lines)
    (dead,) = await store.sorted.dead(slot)
    assert (dead.reason, [why for _, why in dead.history]) == ("third", [odd, "second"])


async def test_a_replayed_message_keeps_its_history(store: Store, topic: str) -> None:
    slot = slot_of(topic)
    await store.sorted.add([SlotAdd(slot, b"x", NOW - 1, Keep.LAST)])
    for life in ("one", "two"):
        (entry,) = (await claim(store, slot)).entries
        await settle(store, slot, entry, SlotVerdict.RETRY, score=entry.left, reason=f"failed in life {life}")
        (entry,) = (await claim(store, slot)).entries
        await settle(store, slot, entry, SlotVerdict.DEAD, reason="died")
        if life == "one":
            assert await store.sorted.settle([SlotSettle(slot, b"x", SlotVerdict.REPLAY, score=NOW - 1)]) == [True]
            assert await store.sorted.dead(slot) == []
    (dead,) = await store.sorted.dead(slot)
    assert [why for _, why in dead.history] == ["failed in life one", "failed in life two"]


async def test_a_body_kept_apart_moves_with_its_member_and_its_twin_has_its_own(
    store: Store, server: redis.Redis, topic: str
) -> None:
    slot, total = slot_of(topic, apart=True), Fold("sum")
    add = SlotAdd(slot, b"cart", NOW - 5, Keep.FIRST, b"40", b"n 1", total)
    assert await store.sorted.add([add, add._replace(body=b"2", note=b"n")]) == [True, False]
    assert server.hgetall(f"body{{{topic}_3}}") == {b"cart": b"2 1 n42"}
    assert server.hget(f"emq{{{topic}_3}}", "fold") == b"sum\n"
    (entry,) = (await claim(store, slot)).entries
    assert (entry.body, entry.note, entry.merged) == (b"42", b"n", 2)
    assert server.hgetall(f"preparebody{{{topic}_3}}") == {b"cart": b"2 1 n42"}
    assert await store.sorted.add([add]) == [True]
    assert server.hgetall(f"body{{{topic}_3}}") == {b"cart": b"1 3 n 140"}
    await settle(store, slot, entry, SlotVerdict.RETRY, score=16, fold=total)
    assert server.hgetall(f"body{{{topic}_3}}") == {b"cart": b"3 3 n 182"}
    assert shown(server, f"{topic}_3") == [(b"cart", NOW - 5)]
    assert server.exists(f"preparebody{{{topic}_3}}", f"prepare{{{topic}_3}}") == 0
    (entry,) = (await claim(store, slot)).entries
    await settle(store, slot, entry, SlotVerdict.DEAD, reason="no")
    assert server.hgetall(f"deadbody{{{topic}_3}}") == {b"cart": b"3 3 n 182"}
    (dead,) = await store.sorted.dead(slot)
    assert (dead.body, dead.note) == (b"82", b"n 1")


async def test_the_sandbox_shares_no_key(store: Store, server: redis.Redis, topic: str, redis_url: str) -> None:
    slot, sandbox = slot_of(topic, apart=True), await open_store(redis_url, Environment.SANDBOX)
    try:
        for each in (store, sandbox):
            assert await each.sorted.add([SlotAdd(slot, b"x", NOW - 1, Keep.LAST, b"b")]) == [True]
        (entry,) = (await claim(sandbox, slot, epoch=7)).entries
        assert shown(server, f"prepare{{sandbox:{topic}_3}}") == [(b"x", NOW + 16)]
        assert shown(server, f"{topic}_3") == [(b"x", NOW - 1)]
        (mine,) = (await claim(store, slot, epoch=1)).entries
        assert mine == entry
        keys = {key.decode() for key in server.keys(f"*{topic}*")}
        online = {key for key in keys if "sandbox:" not in key}
        assert {key.replace(topic, f"sandbox:{topic}") for key in online} == keys - online
    finally:
        await sandbox.close()


@pytest.mark.parametrize("environment", ["online", "sandbox"])
def test_all_keys_of_a_slot_lie_in_one_hash_slot_of_a_cluster(environment: str) -> None:
    keys = SlotKeys(environment, "prices/3").everything
    assert len(set(keys)) == 12
    assert len({key_slot(key.encode()) for key in keys}) == 1


# ------------------------------------------------------------------------------------------------------------ strangers


async def test_what_a_foreign_producer_adds_is_consumed(store: Store, server: redis.Redis, topic: str) -> None:
    slots, content = 8, b"sku-4711"
    index = zlib.crc32(content) % slots
    add = server.register_script(RANGE_MERGE_ADD)
    assert [add([f"{topic}_{index}"], [NOW - ms, content]) for ms in (50, 80)] == [1, 0]
    slot = slot_of(topic, SlotKind.RANGE_MERGE, index)
    (state,) = await store.sorted.inspect([slot], NOW)
    assert (state.waiting, state.due, state.next_score) == (1, 1, NOW - 50)
    (entry,) = (await claim(store, slot)).entries
    assert entry == Entry(content, NOW - 50, NOW + 16, content)
    await settle(store, slot, entry, SlotVerdict.ACK)


async def test_foreign_scores_of_every_sort_are_claimed_and_settled(
    store: Store, server: redis.Redis, topic: str
) -> None:
    slot = slot_of(topic, SlotKind.PRIORITY)
    scores = {"top": float("inf"), "high": 99.5, "low": 17, "retried": 3, "last": 0, "odd": 0.5, "below": -3}
    server.zadd(f"{topic}_3", scores)
    entries = (await claim(store, slot)).entries
    told = scores | {"top": sys.float_info.max}  # what EMQ stores again is finite
    assert [(e.member.decode(), e.score) for e in entries] == sorted(told.items(), key=lambda s: -s[1])
    assert [e.left for e in entries] == [16, 16, 16, 2, 0, 0, 0]
    assert dict(shown(server, f"prepare{{{topic}_3}}")) == {e.member: e.token for e in entries}
    acks = [SlotSettle(slot, e.member, SlotVerdict.ACK, e.token, 1) for e in entries]
    assert await store.sorted.settle(acks) == [True] * len(scores)


async def test_a_foreign_member_without_a_record_is_its_own_body_and_merges(
    store: Store, server: redis.Redis, topic: str
) -> None:
    slot = slot_of(topic, apart=True)
    server.zadd(f"{topic}_3", {"a": NOW - 2, "b": NOW - 1})
    add = SlotAdd(slot, b"b", NOW - 1, Keep.LAST, b"5", b"", Fold("sum"))
    assert await store.sorted.add([add]) == [False]
    assert [e.body for e in (await claim(store, slot)).entries] == [b"a", b"5"]


async def test_what_we_add_is_consumed_by_a_foreign_consumer(store: Store, server: redis.Redis, topic: str) -> None:
    slot = slot_of(topic, SlotKind.FIXED_TIME)
    await store.sorted.add([SlotAdd(slot, m, NOW - n, Keep.LAST) for n, m in enumerate((b"fails", b"works"), 1)])
    prepare = server.register_script(
        "local head = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', 0, 1)\n"
        "local left = tonumber(head[2]) > 16 and 16 or tonumber(head[2]) - 1\n"
        "redis.call('ZREM', KEYS[1], head[1])\n"
        "redis.call('ZADD', KEYS[2], math.floor(ARGV[1] / 1000) * 1000 + left, head[1])\n"
        "return {head[1], left}"
    )
    keys = [f"{topic}_3", f"prepare{{{topic}_3}}"]
    assert prepare(keys, [NOW]) == [b"works", 16]
    assert server.zrem(keys[1], "works") == 1  # commit
    assert prepare(keys, [NOW]) == [b"fails", 16]
    server.zrem(keys[1], "fails")  # roll back
    server.zadd(keys[0], {"fails": 16})
    (entry,) = (await claim(store, slot)).entries
    assert (entry.member, entry.score, entry.left) == (b"fails", 16, 15)


async def test_what_a_foreign_consumer_left_in_prepare_times_out(store: Store, server: redis.Redis, topic: str) -> None:
    slot, prepare = slot_of(topic), f"prepare{{{topic}_3}}"
    await claim(store, slot)
    server.zadd(
        prepare, {"stale": NOW - 60_000 + 16, "last": NOW - 60_000, "fresh": NOW + 16, "mine": NOW - 60_000 + 9}
    )
    assert await store.sorted.recover([Recover(slot, 1, NOW - 30_000, [b"mine"], "timed out")], NOW) == [2]
    assert shown(server, f"{topic}_3") == [(b"stale", 16)]
    assert shown(server, prepare) == [(b"mine", NOW - 60_000 + 9), (b"fresh", NOW + 16)]
    (dead,) = await store.sorted.dead(slot)
    assert (dead.member, dead.body, dead.reason, dead.dead_ms) == (b"last", b"last", "timed out", NOW)
    assert await store.sorted.recover([Recover(slot, 2)], NOW) == [0]
    assert await store.sorted.recover([Recover(slot, 2, NOW + 1000)], NOW) == [2]
    assert shown(server, f"{topic}_3") == [(b"mine", 9), (b"fresh", 16), (b"stale", 16)]


@pytest.mark.parametrize("lost", [False, True])
async def test_what_a_foreign_consumer_runs_goes_back_by_its_time_out_only(
    store: Store, server: redis.Redis, topic: str, lost: bool
) -> None:
    """Neither a host that starts nor one that lost an answer may roll back what another program is running."""
    slot, prepare = slot_of(topic), f"prepare{{{topic}_3}}"
    await claim(store, slot, epoch=1)
    server.zadd(prepare, {"foreign": NOW + 16})
    epoch = 1 if lost else 2
    early = Recover(slot, epoch, NOW - 60_000, lost=lost)
    assert await store.sorted.recover([early], NOW) == [0]
    await store.sorted.add([SlotAdd(slot, b"ours", NOW - 1, Keep.LAST)])
    (entry,) = (await claim(store, slot, epoch=epoch)).entries
    assert await store.sorted.recover([early._replace(epoch=epoch + (not lost))], NOW) == [0]
    assert shown(server, prepare) == [(b"foreign", NOW + 16), (b"ours", NOW + 16)]
    # Once the other program is done, the rest is EMQ's for sure.
    server.zrem(prepare, "foreign")
    again = Recover(slot, epoch + 2 * (not lost), lost=lost)
    assert await store.sorted.recover([again], NOW) == [1]
    assert shown(server, f"{topic}_3") == [(entry.member, 16)]
    # As many in prepare as EMQ once claimed, but claimed after that by others, who rolled EMQ's back.
    (entry,) = (await claim(store, slot, epoch=again.epoch)).entries
    server.zrem(prepare, entry.member)
    server.zadd(prepare, {"foreign": NOW + 70_000 + 16})
    assert await store.sorted.recover([again._replace(epoch=again.epoch + (not lost))], NOW) == [0]


async def test_whose_claims_are_in_prepare_is_known_again_after_doubt(
    store: Store, server: redis.Redis, topic: str
) -> None:
    slot, prepare = slot_of(topic), f"prepare{{{topic}_3}}"
    await store.sorted.add([SlotAdd(slot, b"%d" % n, NOW - 9 + n, Keep.LAST) for n in range(4)])
    first, second = (await claim(store, slot, limit=2)).entries
    server.zrem(prepare, first.member)  # by somebody's own time-out
    verdict = SlotSettle(slot, first.member, SlotVerdict.ACK, first.token, 1)
    assert await store.sorted.settle([verdict]) == [False]
    server.zadd(prepare, {"foreign": NOW + 16})
    assert await store.sorted.recover([Recover(slot, 2)], NOW) == [0]
    server.zrem(prepare, "foreign", second.member)
    assert len((await claim(store, slot, limit=1, epoch=2)).entries) == 1
    assert await store.sorted.recover([Recover(slot, 3)], NOW) == [1]


async def rested(store: Store, topic: str, rest_ms: int = NOW + 5500) -> Slot:
    """A slot of kind priority, in which one member rests."""
    slot = slot_of(topic, SlotKind.PRIORITY)
    await store.sorted.add([SlotAdd(slot, b"x", 50, Keep.LAST)])
    (entry,) = (await claim(store, slot)).entries
    await settle(store, slot, entry, SlotVerdict.REST, score=50, reason="busy", rest_ms=rest_ms)
    return slot


async def test_what_rests_is_in_prepare_under_a_stamp_that_others_leave_alone(
    store: Store, server: redis.Redis, topic: str
) -> None:
    slot = await rested(store, topic)
    assert server.exists(f"{topic}_3") == 0
    assert shown(server, f"prepare{{{topic}_3}}") == [(b"x", NOW + 6000 + 16)]
    await store.sorted.recover([Recover(slot, 1)], NOW + 5500)
    assert shown(server, f"{topic}_3") == [(b"x", 50)]
    for key in ("prepare", "rests", "restscores"):
        assert server.exists(f"{key}{{{topic}_3}}") == 0


async def test_strangers_may_take_what_rests(store: Store, server: redis.Redis, topic: str) -> None:
    slot = await rested(store, topic)
    assert server.zrem(f"prepare{{{topic}_3}}", b"x") == 1  # acknowledged
    await store.sorted.add([SlotAdd(slot, b"x", 60, Keep.LAST)])
    (entry,) = (await claim(store, slot, now_ms=NOW + 1000)).entries
    assert (await claim(store, slot, now_ms=NOW + 5500)).rest_ms == NOW + 5500
    await store.sorted.recover([Recover(slot, 1)], NOW + 5500)
    assert shown(server, f"prepare{{{topic}_3}}") == [(b"x", NOW + 1000 + entry.left)]
    assert server.exists(f"{topic}_3") == 0
    assert (await claim(store, slot, now_ms=NOW + 5500)).rest_ms is None


async def test_a_rest_that_was_forgotten_ends_by_the_time_out(store: Store, server: redis.Redis, topic: str) -> None:
    slot = await rested(store, topic)
    server.delete(f"rests{{{topic}_3}}", f"restscores{{{topic}_3}}")
    assert await store.sorted.recover([Recover(slot, 1, NOW + 6000)], NOW + 66_000) == [0]
    assert await store.sorted.recover([Recover(slot, 1, NOW + 7000)], NOW + 67_000) == [1]
    assert shown(server, f"{topic}_3") == [(b"x", 16)]


async def test_a_strangers_garbage_about_rests_loses_nothing(store: Store, server: redis.Redis, topic: str) -> None:
    slot = await rested(store, topic)
    server.hset(f"restscores{{{topic}_3}}", b"x", b"garbage")
    server.hset(f"emq{{{topic}_3}}", b"rest", b"garbage")
    server.zadd(f"rests{{{topic}_3}}", {b"y": 5, b"z": float("inf"), b"w": float("-inf")})
    assert (await claim(store, slot)).entries == []
    await store.sorted.recover([Recover(slot, 2)], NOW + 5500)
    assert shown(server, f"{topic}_3") == [(b"x", 16)]
    (entry,) = (await claim(store, slot, epoch=2, now_ms=NOW + 6000)).entries
    assert (entry.member, entry.left) == (b"x", 15)


async def test_what_strangers_left_dead_is_listed(store: Store, server: redis.Redis, topic: str) -> None:
    slot = slot_of(topic)
    server.zadd(f"dead{{{topic}_3}}", {"a": 5.5, "b": 5.7, "c": float("inf")})
    page = await store.sorted.dead(slot, limit=2)
    rest = await store.sorted.dead(slot, (page[-1].dead_ms, page[-1].member))
    assert [(d.member, d.reason, d.history) for d in (*page, *rest)] == [(m, "", ()) for m in (b"a", b"b", b"c")]


async def test_what_dies_again_goes_on_top_of_its_dead_letter_a_strangers_too(
    store: Store, server: redis.Redis, topic: str
) -> None:
    slot, total, odd = slot_of(topic, apart=True), Fold("sum"), 'broke:\n"caf\u00e9" \\ 100 %'
    server.zadd(f"dead{{{topic}_3}}", {"cart": float("inf")})
    for body, reason in ((b"40", odd), (b"2", "again")):
        await store.sorted.add([SlotAdd(slot, b"cart", NOW - 5, Keep.FIRST, body, b"n", total)])
        (entry,) = (await claim(store, slot)).entries
        await settle(store, slot, entry, SlotVerdict.DEAD, reason=reason, fold=total)
        if reason == odd:
            assert (await store.sorted.dead(slot))[0].history == ()
            server.zadd(f"dead{{{topic}_3}}", {"cart": 1.7e12})
    assert server.hgetall(f"deadbody{{{topic}_3}}") == {b"cart": b"2 1 n42"}
    assert server.hget(f"reason{{{topic}_3}}", "cart") == f'"again"\n{NOW} {json.dumps(odd)}'.encode()
    assert server.exists(f"history{{{topic}_3}}", f"preparebody{{{topic}_3}}") == 0
    (dead,) = await store.sorted.dead(slot)
    assert (dead.reason, dead.history) == ("again", ((NOW, odd),))


# -------------------------------------------------------------------------------------------------------- when it fails


async def test_a_server_that_forgot_its_scripts_loses_nothing(store: Store, server: redis.Redis, topic: str) -> None:
    slot = slot_of(topic)
    await store.sorted.add([SlotAdd(slot, b"a", NOW - 2, Keep.LAST)])
    server.script_flush()
    assert await store.sorted.add([SlotAdd(slot, b"b", NOW - 1, Keep.LAST)]) == [True]
    server.script_flush()
    entries = (await claim(store, slot)).entries
    server.script_flush()
    assert await store.sorted.settle([SlotSettle(slot, e.member, SlotVerdict.ACK, e.token, 1) for e in entries]) == [
        True,
        True,
    ]
    server.script_flush()
    assert await store.sorted.recover([Recover(slot, 2)], NOW) == [0]


async def test_a_full_server_refuses_adds_and_can_be_drained(store: Store, server: redis.Redis, topic: str) -> None:
    plain, apart = slot_of(topic), slot_of(topic, index=4, apart=True)
    for slot in (plain, apart):
        await store.sorted.add([SlotAdd(slot, b"%d" % n, NOW - 9 + n, Keep.LAST, b"b") for n in range(4)])
    server.config_set("maxmemory", "1")
    try:
        for slot in (plain, apart):
            with pytest.raises(errors.StoreFull):
                await store.sorted.add([SlotAdd(slot, b"new", NOW, Keep.LAST, b"b")])
            one, two, three, _ = (await claim(store, slot)).entries
            await settle(store, slot, one, SlotVerdict.ACK)
            await settle(store, slot, two, SlotVerdict.RETRY, score=16, reason="full")
            await settle(store, slot, three, SlotVerdict.DEAD, reason="full")
            assert await store.sorted.recover([Recover(slot, 2)], NOW) == [1]
            (state,) = await store.sorted.inspect([slot], NOW)
            assert (state.waiting, state.prepared, state.dead) == (2, 0, 1)
    finally:
        server.config_set("maxmemory", "0")
    assert await store.sorted.add([SlotAdd(plain, b"new", NOW, Keep.LAST)]) == [True]


async def test_many_lost_members_roll_back_in_rounds_and_the_new_epoch_counts_from_the_last(
    store: Store, server: redis.Redis, topic: str
) -> None:
    slots = [slot_of(topic, index=index) for index in range(3)]
    await store.sorted.add([SlotAdd(s, b"%d" % n, NOW - 1, Keep.LAST) for s in slots for n in range(700)])
    for slot in slots:
        assert len((await claim(store, slot, limit=700)).entries) == 700
    assert await store.sorted.recover([Recover(slot, 2) for slot in slots], NOW) == [700] * 3
    for slot in slots:
        assert server.zcard(f"{topic}_{slot.name[-1]}") == 700
        (stale,) = await store.sorted.claim([SlotClaim(slot, 1, 1, NOW)], NOW)
        assert isinstance(stale, errors.NotOwner)


async def test_one_call_claims_more_slots_and_members_than_a_script_call_takes(store: Store, topic: str) -> None:
    slots = [slot_of(topic, index=index) for index in range(600)]
    await store.sorted.add([SlotAdd(s, b"%d" % n, NOW - 1, Keep.LAST) for s in slots for n in range(5)])
    answers = await store.sorted.claim([SlotClaim(slot, 5, 1, NOW) for slot in slots], NOW)
    assert [len(a.entries) for a in answers if isinstance(a, SlotClaimed)] == [5] * 600


# ---------------------------------------------------------------------------------------------------------------- folds

NUMBERS = (
    b"1",
    b"-1",
    b" 2.50 ",
    b"0.1",
    b"0.2",
    b"1e3",
    b"-0.0",
    b"9007199254740991",
    b"1e300",
    b"1e308",
    b"+.5",
    b"7.",
)
TEXTS = (b"", b"a", b"a\nb\n\na", b"b\na\x00\nc", b"\xff\n")


@pytest.mark.parametrize("name", ["sum", "max", "min", "union", "count", "latest"])
async def test_the_folds_in_lua_agree_with_those_in_python(store: Store, topic: str, name: str) -> None:
    fold = Fold(name)
    pairs = list(itertools.product(NUMBERS if name in folds.NUMERIC else TEXTS, repeat=2))
    slot = slot_of(topic, apart=True)
    for at in (0, 1):
        adds = [SlotAdd(slot, b"%03d" % n, NOW, Keep.LAST, p[at], b"", fold) for n, p in enumerate(pairs)]
        answers = await store.sorted.add(adds)
    waiting = await store.sorted.waiting(slot, limit=1000)
    expected, refused = [], []
    for older, newer in pairs:
        try:
            expected.append(folds.apply(fold, folds.initial(fold, older), folds.initial(fold, newer)))
            refused.append(False)
        except errors.InvalidMessage:  # the sum is not finite: the older body stays
            expected.append(older)
            refused.append(True)
    assert [w.body for w in waiting] == expected
    assert [isinstance(answer, errors.InvalidMessage) for answer in answers] == refused
    assert any(refused) == (name == "sum")

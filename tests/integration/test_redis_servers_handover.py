"""A range of a list of servers is served while it is copied, then handed over, or given back, whatever is restarted."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from test_redis_servers import QUEUES, Killed, bodies, break_at, opened, put_all, ranges, spread

from emq.runtime import errors
from emq.storage.lane_store import LaneAdd, LaneClaim, LaneSettle, LaneVerdict
from emq.storage.log_store import Put
from emq_stores.redis import moving, server_list
from emq_stores.redis.keys import SERVERS
from support.redis_servers.listed import start_listed
from support.waiting import until

pytestmark = pytest.mark.usefixtures("redis_url")  # skips where no server is installed


@pytest.mark.parametrize("restarted", ["source", "target"])
async def test_a_server_restarted_after_the_last_check_loses_no_message(
    restarted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_listed(appendonly=True) as listed:
        note, done, refused = moving._Move._note, False, 0

        async def note_after_a_restart(move: moving._Move, value: str, *more: object) -> None:
            nonlocal done, refused
            if value == move._target and move._copied and not done:  # about to hand over
                done = True
                node = listed.at(move._source if restarted == "source" else move._target)
                node.kill()
                await asyncio.to_thread(node.restart)
                if restarted == "source":  # it has lost that the range is frozen
                    version = move._version - 2
                    node.ask("HSET", SERVERS, move._number, move._leaving, f"{move._number}:version", version)
                    refused = (await put_all(store, b"b")).count(-1)
                else:  # it has lost the copies
                    node.ask("UNLINK", *move._copied)
            await note(move, value, *more)  # type: ignore[arg-type]

        monkeypatch.setattr(moving._Move, "_note", note_after_a_restart)
        async with opened(listed.url) as store:
            await put_all(store, b"a")
            await asyncio.to_thread(listed.add)
            if restarted == "target":
                with pytest.raises(errors.ChangedMeanwhile, match="was restarted during a move"):
                    await spread(listed, listed.nodes)
            await spread(listed, listed.nodes)
            assert done
            found = await bodies(store)
            assert found.count([b"a"]) == (refused if restarted == "source" else 200)
            assert all(each in ([b"a"], [b"a", b"b"]) for each in found)
            assert (restarted == "source") == (0 < refused < 200)
            assert -1 not in await put_all(store, b"c")


async def test_what_changes_while_a_range_is_copied_is_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_listed() as listed:
        copy, changed = moving._Move._copy_keys, False

        async def copy_and_change(move: moving._Move, value: str, *more: float, **named: float) -> bool:
            nonlocal changed
            is_last = await copy(move, value, *more, **named)
            if value == move._leaving and not changed and move._copied:
                changed = True
                assert -1 not in await put_all(store, b"b")
                for lane in lanes:
                    [taken] = await store.lanes.claim([LaneClaim(lane, 5, 1)], 10)
                    assert not isinstance(taken, Exception)
                    await store.lanes.settle([LaneSettle(lane, id, LaneVerdict.ACK, 1) for id, _ in taken.entries])
            return is_last

        async with opened(listed.url) as store:
            lanes = [queue.rpartition("/")[0] for queue in QUEUES]
            await put_all(store, b"a")
            await store.lanes.add([LaneAdd(lane, "a", b"waits", 1) for lane in lanes])
            await asyncio.to_thread(listed.add)
            monkeypatch.setattr(moving._Move, "_copy_keys", copy_and_change)
            await spread(listed, listed.nodes)
            assert changed
            assert await bodies(store) == [[b"a", b"b"]] * 200
            for lane in lanes:
                [taken] = await store.lanes.claim([LaneClaim(lane, 5, 2)], 10)
                assert not isinstance(taken, Exception)
                assert not taken.entries, "a message that was done came back"


async def test_a_range_is_served_while_nearly_all_of_its_keys_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "COPIED_KEYS", 50)
    monkeypatch.setattr(moving, "SLICE_S", 0.0)  # one call for each slice
    with start_listed(1) as listed:
        copy, copied, waits = moving._Move._copy_keys, {True: 0, False: 0}, [0.0]

        async def counted(move: moving._Move, value: str, *more: float, **named: float) -> bool:
            before = len(move._copied)
            if value == move._leaving and more and not before:
                await put_all(store, b"more")  # is not refused
            is_last = await copy(move, value, *more, **named)
            copied[value == move._frozen] += len(move._copied) - before
            if value == move._leaving and copied[False] < 2_000:
                began = time.monotonic()
                assert -1 not in await put_all(store, b"x")
                waits.append(time.monotonic() - began)
            return is_last

        async with opened(listed.url) as store:
            names = [f"many/{group}/high" for group in range(3_000)]
            await store.log.put([Put(name, [b"a"]) for name in names])
            await asyncio.to_thread(listed.add)
            monkeypatch.setattr(moving._Move, "_copy_keys", counted)
            await spread(listed, listed.nodes)
            assert copied[False] > 1_500
            assert copied[True] < 100, "the range was frozen while its keys were copied"


# Calls of `_note` and `_agree` that a kill keeps from happening: see what the range is left as.
@pytest.mark.parametrize(
    ("name", "nth", "left"),
    [("_note", 3, "frozen"), ("_confirm_copies", 1, "frozen"), ("_note", 5, "frozen"), ("_agree", 3, "handed over")],
)
async def test_processes_end_a_move_that_was_killed(
    name: str, nth: int, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_list, "LIFT_S", 0.5)
    with start_listed() as listed:
        async with opened(listed.url) as store:
            await put_all(store, b"a")
            third = await asyncio.to_thread(listed.add)
            with monkeypatch.context() as broken:
                break_at(name, nth)(broken)
                with pytest.raises(Killed):
                    await spread(listed, listed.nodes)
            assert any(" " in entry for entry in ranges(listed.nodes[0]))
            assert (third.address in ranges(third)) == (left == "handed over")
            await until(lambda: _is_open(store), 15)
            records = [ranges(node) for node in listed.nodes]
            assert (third.address in records[0]) == (left == "handed over")
            assert not any(" " in entry for entry in records[0])
            for queue, found in zip(QUEUES, await bodies(store), strict=True):
                assert list(found) == [b"a", *[b"b"] * (len(found) - 1)], queue
                assert len(found) > 1


async def test_messages_done_after_a_move_was_killed_do_not_come_back_with_the_next_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with start_listed() as listed:
        async with opened(listed.url) as store:
            lanes = [queue.rpartition("/")[0] for queue in QUEUES]
            await store.lanes.add([LaneAdd(lane, "a", b"waits", 1) for lane in lanes])
            third = await asyncio.to_thread(listed.add)
            with monkeypatch.context() as broken:
                copy = moving._Move._copy_keys

                async def copy_and_die(move: moving._Move, *args: Any, **named: Any) -> bool:
                    await copy(move, *args, **named)
                    if move._copied:  # the source still serves the range
                        break_at("_give_back", 1)(broken)
                        raise Killed
                    return True

                broken.setattr(moving._Move, "_copy_keys", copy_and_die)
                with pytest.raises(Killed):
                    await spread(listed, listed.nodes)
            assert any(len(entry.split(" ")) == 4 for entry in ranges(third))
            for lane in lanes:
                [taken] = await store.lanes.claim([LaneClaim(lane, 5, 1)], 10)
                assert not isinstance(taken, Exception)
                await store.lanes.settle([LaneSettle(lane, id, LaneVerdict.ACK, 1) for id, _ in taken.entries])
            await spread(listed, listed.nodes)
            assert third.address in ranges(third)
            for lane in lanes:
                [taken] = await store.lanes.claim([LaneClaim(lane, 5, 2)], 10)
                assert not isinstance(taken, Exception)
                assert not taken.entries, "a message that was done came back"


async def test_a_range_is_given_back_when_its_server_was_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_list, "LIFT_S", 0.5)
    with start_listed() as listed:
        confirm, silenced = moving._Move._confirm_copies, []

        async def then_silence(move: moving._Move) -> None:
            await confirm(move)
            node = listed.at(move._source)
            node.pause()
            silenced.append(node)

        async with opened(listed.url) as store:
            await put_all(store, b"a")
            await asyncio.to_thread(listed.add)
            with monkeypatch.context() as broken:
                broken.setattr(moving._Move, "_confirm_copies", then_silence)
                with pytest.raises((errors.OutcomeUnknown, errors.StoreUnavailable)):
                    await spread(listed, listed.nodes)
            silenced[0].resume()
            await until(lambda: _is_open(store), 20)
            assert not any(" " in entry for entry in ranges(silenced[0]))
            assert all(found[0] == b"a" for found in await bodies(store))


async def test_a_move_that_goes_on_is_not_taken_for_one_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_list, "LIFT_S", 0.2)
    with start_listed() as listed:
        copy = moving._Move._copy

        async def slow_copy(move: moving._Move) -> None:
            for _ in range(3):  # the source serves the range meanwhile
                await asyncio.sleep(0.2)
                await store._servers.refresh()
            await copy(move)

        async with opened(listed.url) as store:
            await put_all(store, b"a")
            await asyncio.to_thread(listed.add)
            monkeypatch.setattr(moving, "planned", lambda entries, wanted: _one_away(entries, listed.nodes[2].address))
            monkeypatch.setattr(moving._Move, "_copy", slow_copy)
            assert sum((await spread(listed, listed.nodes)).values()) == 1


def _one_away(entries: server_list.Record, target: str) -> list[str]:
    return [target, *(entries[str(number)].address for number in range(1, 64))]


async def _is_open(store: moving.ListedStore) -> bool:
    return -1 not in await put_all(store, b"b")

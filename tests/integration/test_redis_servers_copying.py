"""A range of a list of servers is copied whole: servers restart meanwhile, messages are durable, keys are large."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

import pytest
from test_redis_servers import QUEUES, bodies, opened, put_all, ranges, spread

from emq.runtime import errors
from emq.storage.durability import Durability
from emq.storage.log_store import Put
from emq_stores.redis import moving
from emq_stores.redis.keys import SERVERS
from support.redis_servers.listed import start_listed

pytestmark = pytest.mark.usefixtures("redis_url")  # skips where no server is installed


@pytest.mark.parametrize("restarted", ["source", "target"])
async def test_a_move_notices_that_a_server_was_restarted_from_an_older_copy(
    restarted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_listed(appendonly=True) as listed:
        copy, done = moving._Move._copy, False

        async def copy_and_restart(move: moving._Move) -> None:
            nonlocal done
            await copy(move)
            if move._copied and not done:
                done = True
                address = move._source if restarted == "source" else move._target
                node = listed.at(address)
                node.kill()
                await asyncio.to_thread(node.restart)
                if restarted == "source":  # it has lost that the range is frozen
                    node.ask("HSET", SERVERS, move._number, address, f"{move._number}:version", move._version - 2)
                    assert -1 not in await put_all(store, b"b")
                else:  # it has lost the copies
                    node.ask("UNLINK", *move._copied)

        monkeypatch.setattr(moving._Move, "_copy", copy_and_restart)
        async with opened(listed.url) as store:
            await put_all(store, b"a")
            await asyncio.to_thread(listed.add)
            with pytest.raises(errors.ChangedMeanwhile, match="was restarted during a move"):
                await spread(listed, listed.nodes)
            await spread(listed, listed.nodes)
            assert await bodies(store) == [[b"a", b"b"] if restarted == "source" else [b"a"]] * 200


async def test_a_range_moves_only_when_the_disk_of_its_new_server_has_it() -> None:
    with start_listed(appendonly=True) as listed:
        async with opened(listed.url) as store:
            await store.log.put([Put(queue, [b"a"]) for queue in QUEUES], Durability.FSYNCED)
            third = await asyncio.to_thread(listed.add)
            third.ask("CONFIG", "SET", "appendfsync", "no")
            with pytest.raises(errors.OutcomeUnknown, match="did not confirm it as fsynced"):
                await spread(listed, listed.nodes)
            assert third.address not in ranges(listed.nodes[0])
            third.ask("CONFIG", "SET", "appendfsync", "everysec")
            await spread(listed, listed.nodes)
            assert third.address in ranges(listed.nodes[0])
            assert await bodies(store) == [[b"a"]] * 200


async def test_a_range_of_large_keys_is_copied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "COPIED_BYTES", 16_384)
    copied: list[int] = []
    run = moving._run

    async def counted(
        servers: Any, address: str, name: str, keys: Sequence[bytes], args: Sequence[Any], *more: Any
    ) -> Any:
        if name == "restore":
            copied.append(sum(len(dump) for dump in args[1::2]))
        return await run(servers, address, name, keys, args, *more)

    monkeypatch.setattr(moving, "_run", counted)
    with start_listed() as listed:
        async with opened(listed.url) as store:
            body = secrets.token_bytes(12_000)
            await put_all(store, body)
            third = await asyncio.to_thread(listed.add)
            await spread(listed, listed.nodes)
            assert third.address in ranges(third)
            assert await bodies(store) == [[body]] * 200
            assert max(copied) < 4 * 12_000, copied

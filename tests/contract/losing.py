"""What servers do that come back without their last writes, for each store."""

from __future__ import annotations

import sqlalchemy as sa

from emq.storage.names import group_of
from emq.storage.store import Store
from emq_stores.redis.keys import shard_of


async def forget_last(name: str, store: Store, queue: str, count: int) -> None:
    """Take back the last messages of a queue behind the adapter's back."""
    log = store.log
    if name == "memory":
        del log._world.queue(queue).cells[-count:]  # type: ignore[attr-defined]
    elif name.startswith("redis"):
        shard = log._shards[shard_of(group_of(queue), len(log._shards))]  # type: ignore[attr-defined]
        await log._server.command("RPOP", shard.log(queue), count)  # type: ignore[attr-defined]
    elif name == "put_get":
        key, client = log._prefix + queue, log._client.client  # type: ignore[attr-defined]
        for offset in sorted(client._bodies[key])[-count:]:
            del client._bodies[key][offset]
            client._tails[key] = min(client._tails[key], offset)
    else:
        await log._backend.run(lambda t: _forget_rows(t.connection, queue, count))  # type: ignore[attr-defined]


def _forget_rows(connection: sa.Connection, queue: str, count: int) -> None:
    find = sa.text("SELECT id, tail FROM store_queues WHERE name = :queue")
    id_, tail = connection.execute(find, {"queue": queue}).one()
    for statement in (
        "DELETE FROM store_messages WHERE queue_id = :id AND msg_offset >= :tail",
        "UPDATE store_queues SET tail = :tail WHERE id = :id",
    ):
        connection.execute(sa.text(statement), {"id": id_, "tail": tail - count})

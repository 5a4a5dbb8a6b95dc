"""Where a call on a cluster goes next after a node refused it."""

from __future__ import annotations

import pytest
import redis.asyncio
from redis.exceptions import AskError, MovedError, ResponseError

from emq.storage.durability import Durability
from emq_stores.redis.cluster import ClusterServer
from emq_stores.redis.node_pipeline import NodePipeline
from emq_stores.redis.topology import HASH_SLOTS, Topology


@pytest.mark.parametrize("refusal", [MovedError, AskError])
@pytest.mark.parametrize(("named", "next_address"), [("", "10.0.0.1:7001"), ("10.0.0.2", "10.0.0.2:7001")])
async def test_a_node_that_names_a_port_alone_means_its_own_host(
    refusal: type[ResponseError], named: str, next_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    async def send(line: NodePipeline, *_: object, **__: object) -> bytes:
        sent.append(line.address)
        if len(sent) == 1:
            raise refusal(f"5 {named}:7001")
        return b"done"

    monkeypatch.setattr(NodePipeline, "send", send)
    monkeypatch.setattr(Topology, "suspect", lambda self: None)
    topology = Topology([], lambda host, port: redis.asyncio.Redis(host=host, port=port), "redis+cluster://10.0.0.1")
    topology._served = ["10.0.0.1:7000"] * HASH_SLOTS
    server = ClusterServer(topology, "redis+cluster://10.0.0.1")
    assert await server.run("bounds", ["key"], [], Durability.ACCEPTED) == b"done"
    assert sent == ["10.0.0.1:7000", next_address]
    await topology.close()

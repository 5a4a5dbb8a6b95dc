"""Runs the load through the gateway of examples/gateway."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop

from bench.gateway import load
from emq_scheduling.model import Pool
from emq_scheduling.pools import documents


async def main(orders: dict[str, Any], pool: Pool) -> None:
    os.environ["EMQ_STORE"], os.environ["GATEWAY_PORT"] = f"sqlite:///{orders['directory']}/emq.db", "0"
    sys.path.insert(0, orders["example"])
    gateway = importlib.import_module("gateway")
    app = gateway.app

    async def stream(messages: Any, *, max_tokens: int, tenant: str, kind: str) -> AsyncIterator[str]:
        body = {"messages": messages, "max_tokens": max_tokens}
        async for chunk in gateway.gateway.stream(body, tenant=tenant, kind=kind):
            for choice in chunk["choices"]:
                yield choice["delta"].get("content", "")

    async with app:
        await gateway.gateway.scheduling.pools.put(pool)
        async with app.running():
            while await gateway.gateway.scheduling.snapshot("models") is None:
                await asyncio.sleep(0.1)
            loaded = load.Load(stream, await load.begun(orders))
            await loaded.run()
    load.tell(loaded)


if __name__ == "__main__":
    given = load.orders()
    uvloop.run(main(given, documents.load(Path(given["pool"]).read_text())))

"""The handler of a trial's hosts: it waits a little, as if for the answer of another service."""

from __future__ import annotations

import asyncio

import emq

HANDLING_S = 0.02

app = emq.App()


@app.handler("*")
async def handle(message: emq.Message) -> None:
    await asyncio.sleep(HANDLING_S)

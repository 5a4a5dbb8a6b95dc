"""What the hosts of a trial do with a message: a little waiting, as for somebody's answer."""

from __future__ import annotations

import asyncio

import emq

HANDLING_S = 0.02

app = emq.App()


@app.handler("*")
async def handle(message: emq.Message) -> None:
    await asyncio.sleep(HANDLING_S)

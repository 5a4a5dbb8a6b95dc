"""Merge what comes often: a product whose price changes ten times within two seconds is indexed once."""

import asyncio
import os

from emq import App, Message

app = App(os.environ.get("EMQ_STORE", "memory:"))
indexed = 0


@app.handler("price-changed")
async def index(message: Message) -> None:
    global indexed
    indexed += 1
    print("indexed", message.payload.decode())  # read the price *now*: the message only says that it changed


async def main() -> None:
    async with app:
        # A product is due two seconds after its first change. What is published again until then is merged with it,
        # and so is what is published later, while it waits in a backlog.
        await app.create_topic("price-changed", qps=100, kind="range_merge", time_range_ms=2_000, exist_ok=True)
        async with app.running():
            changes = 0
            for _ in range(10):
                for product in ("lamp", "chair", "table"):
                    await app.publish("price-changed", product)
                    changes += 1
                await asyncio.sleep(0.1)
            await asyncio.sleep(1.5)
            await app.publish("price-changed", "lamp", time_range_ms=100)  # its own range: a new message, due soon
            changes += 1
            await asyncio.sleep(0.5)
            print(f"{changes} changes, indexed {indexed} times")


asyncio.run(main())

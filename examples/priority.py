"""Key accounts first: the most urgent message goes first, also if it comes last; what changes its mind is moved."""

import asyncio
import os

from emq import App, Message

app = App(os.environ.get("EMQ_STORE", "memory:"))
order: list[str] = []


@app.handler("sync-account")
async def sync(message: Message) -> None:
    order.append(message.payload.decode())
    if len(order) == 3:  # a backlog is being worked off, and the largest customer of all comes last
        await app.publish("sync-account", "key account", priority=1_000)


async def main() -> None:
    async with app:
        # Priorities are numbers above 16 (those up to 16 count the retries left). Ten a second, so that it is seen.
        await app.create_topic("sync-account", qps=10, kind="priority", slots=1, exist_ok=True)
        sizes = {f"account {size}": size for size in range(20, 120, 10)}
        await app.publish_many("sync-account", list(sizes), scores=list(sizes.values()))
        await app.publish("sync-account", "account 20", priority=500)  # waits already: only its priority changes
        async with app.running():
            await asyncio.sleep(3)
        print("order:", ", ".join(order))
        print(f"the key account came last and was number {order.index('key account') + 1} of {len(order)}")


asyncio.run(main())

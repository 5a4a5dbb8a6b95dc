"""Who may run beside whom: one message of a slot at a time, one of a key at a time, or no such rule."""

import asyncio
import os
from collections import Counter
from typing import Any

from emq import App, Message

app = App(os.environ.get("EMQ_STORE", "memory:"))
running: Counter[str] = Counter()
most: Counter[str] = Counter()


@app.handler("*")
async def work(message: Message) -> None:
    # Not the message's key: where the rule does not need it, hosts do not look at it.
    of_topic, of_customer = message.topic, f"{message.topic}, one customer"
    mine = f"{message.topic} {message.payload.decode().split()[0]}"
    running.update((of_topic, mine))
    most[of_topic] = max(most[of_topic], running[of_topic])
    most[of_customer] = max(most[of_customer], running[mine])
    await asyncio.sleep(0.05)
    running.subtract((of_topic, mine))


async def main() -> None:
    async with app:
        for ordering in ("slot", "key", "none"):
            # "slot" is the published RMQ's rule and the default; merge="key" lets hosts see the key of a message.
            options: dict[str, Any] = {"kind": "priority", "slots": 1, "merge": "key", "ordering": ordering}
            await app.create_topic(ordering, qps=100, exist_ok=True, **options)
            for number in range(6):
                for customer in ("ann", "bob"):
                    # In a sorted topic the key is the slot basis: equal keys are in one slot, and so on one host.
                    await app.publish(ordering, f"{customer} {number}", key=customer, priority=100 - number)
        async with app.running():
            await asyncio.sleep(2)
        for ordering in ("slot", "key", "none"):
            at_once, of_one = most[ordering], most[f"{ordering}, one customer"]
            print(f"ordering {ordering}: at most {at_once} at a time, of one customer at most {of_one}")


asyncio.run(main())

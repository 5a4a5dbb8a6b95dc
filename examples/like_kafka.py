"""What Kafka offers: a fetch that waits until enough messages are there or its time is up, whichever is first.

Kafka's named weakness is the precision of its timing wheel's ticks. Here a delay ends at its very time, to the
millisecond, and with it the wait.
"""

import asyncio
import os
import time

from emq import App

app = App(os.environ.get("EMQ_STORE", "memory:"))


async def fetch(min_messages: int, timeout_s: float) -> None:
    begin = time.monotonic()
    deliveries = await app.receive("clicks", min_messages, timeout_s)
    waited_s = time.monotonic() - begin
    print(f"wanted {min_messages} within {timeout_s:g} s: got {len(deliveries)} after {waited_s:.1f} s")
    for delivery in deliveries:
        delivery.ack()  # or nack(after_s=...), or extend(...) if it takes longer than visibility_s


async def main() -> None:
    async with app:
        await app.create_topic("clicks", qps=1_000, exist_ok=True)
        await app.receive("clicks", timeout_s=1.2)  # the first call makes this process a host
        await app.publish_many("clicks", [f"click {number}" for number in range(3)])
        await fetch(3, 5.0)  # enough is there: at once
        await app.publish("clicks", "a lonely click")
        await fetch(10, 0.5)  # the time is up: what there is
        await app.publish("clicks", "a delayed click", delay_ms=700)
        await fetch(1, 5.0)  # nobody polls; the click's time ends the wait
        received = asyncio.create_task(fetch(4, 5.0))
        for number in range(4):
            await asyncio.sleep(0.1)
            await app.publish("clicks", f"click {number}")
        await received  # ends early, with the fourth


asyncio.run(main())

"""What a delay queue on a Redis sorted set offers, without its named weaknesses: loss, polling, and no retry.

Such a queue polls its head and removes what is due: a consumer that dies then has lost it, and each poll costs CPU or
precision. Here a message is *claimed*, and gone only when the handler has returned; and a wake-up replaces the poll.
"""

import asyncio
import os
import time

from emq import App, Message

app = App(os.environ.get("EMQ_STORE", "memory:"))


@app.handler("reminders")
async def remind(message: Message) -> None:
    if message.payload == b"fragile":
        lag = await app.admin.slot_lag([await app.catalog.get("reminders")])
        print(f"fragile, attempt {message.attempt}: claimed {lag[0].claimed}, so a crash now would not lose it")
        if message.attempt < 3:
            raise ConnectionError("the mail server hung up")  # retried at once, up to 16 times, then a dead letter
    else:
        print(f"{message.payload.decode()}: started {message.started_us / 1000 - message.score:.0f} ms after its time")


async def main() -> None:
    async with app:
        topic = await app.create_topic(
            "reminders", qps=100, kind="fixed_time", slots=4, precision="millisecond", exist_ok=True
        )
        async with app.running():
            await app.publish("reminders", "fragile", delay_ms=1_100)
            await app.publish("reminders", "in an hour", delay_ms=3_600_000)
            await asyncio.sleep(2)
            cpu_s = time.process_time()
            await asyncio.sleep(1)  # nobody looks at the clock: the host sleeps until the next time, or is woken
            print(f"idle for a second: {(time.process_time() - cpu_s) * 1000:.0f} ms of CPU")
            await app.publish("reminders", "in 50 ms", delay_ms=50)  # comes before what the host waits for: it is woken
            await asyncio.sleep(0.3)
            [lag] = await app.admin.slot_lag([topic])
            print(f"{lag.delayed} waits, {lag.claimed} claimed, {lag.dead} dead")


asyncio.run(main())

"""What ActiveMQ's scheduler offers: delay, period and repeat, cron; here with time zones, a list, and taking back.

ActiveMQ's named weakness: redelivering a failed dispatch adds the delay again. Here a retry has a time of its own.
"""

import asyncio
import os
import time

from emq import App, Message, Retry

app = App(os.environ.get("EMQ_STORE", "memory:"))
begin = 0.0


@app.handler("jobs")
async def run_job(message: Message) -> None:
    at_s = time.time() - begin
    print(f"{message.payload.decode()} at {at_s:.1f} s, attempt {message.attempt}")
    if message.payload == b"fails once" and message.attempt == 1:
        raise Retry("busy", after_s=0.2)  # in 0.2 s, not in 0.2 s and the delay of 1.5 s


async def main() -> None:
    global begin
    async with app:
        await app.create_topic("jobs", qps=100, exist_ok=True)
        begin = time.time()
        await app.publish("jobs", "fails once", delay_ms=1_500)
        await app.schedule("jobs", "thrice", delay_ms=1_000, every_s=0.5, repeat=2)
        tick = await app.schedule("jobs", "cron", cron="* * * * * *", tz="Europe/Berlin")  # six fields: with seconds
        payday = await app.schedule("jobs", "payday", cron="0 9 25 * *", tz="Asia/Tokyo")
        # Nobody was there for a minute: "skip" what was missed, publish it "once" (the default), or "all" of it.
        for missed in ("skip", "once", "all"):
            await app.schedule("jobs", f"missed {missed}", at=begin - 60, every_s=15, repeat=2, missed=missed)

        for entry in await app.planned("jobs"):
            print(f"planned: {entry.payload.decode()}, {entry.text or entry.kind}")
        print("taken back:", await app.recall("jobs", payday) == {payday})
        async with app.running():
            await asyncio.sleep(3.2)
            print("taken back:", await app.recall("jobs", tick) == {tick})


asyncio.run(main())

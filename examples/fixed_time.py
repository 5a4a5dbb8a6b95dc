"""Exact times: each message starts at its own time, to the millisecond, never early, in whatever order it came."""

import asyncio
import datetime
import os

from emq import App, Message

app = App(os.environ.get("EMQ_STORE", "memory:"))
late_ms: list[float] = []


@app.handler("auction-ends")
async def close(message: Message) -> None:
    late_ms.append(app.clock.now() * 1000 - message.score)  # the score of such a message is its time, by EMQ's clock
    print(f"{message.payload.decode()} closed, {late_ms[-1]:.1f} ms after its time")


async def main() -> None:
    async with app:
        # precision="second", the default, is that of the published RMQ.
        await app.create_topic("auction-ends", qps=100, kind="fixed_time", precision="millisecond", exist_ok=True)
        async with app.running():
            now = datetime.datetime.now(datetime.UTC)
            for name, seconds in (("violin", 2.75), ("clock", 1.5), ("stamp", 1.503), ("globe", 1.9)):
                await app.publish("auction-ends", name, at=now + datetime.timedelta(seconds=seconds))
            await app.publish("auction-ends", "clock", delay_ms=2_000)  # extended: the latest time counts
            withdrawn = await app.publish("auction-ends", "teapot", delay_ms=2_000)
            print("taken back:", await app.recall("auction-ends", withdrawn) == {withdrawn})
            await asyncio.sleep(3.1)
        print(f"{len(late_ms)} closed, {sum(late < 0 for late in late_ms)} early, at most {max(late_ms):.0f} ms late")


asyncio.run(main())

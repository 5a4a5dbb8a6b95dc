"""What RocketMQ offers: delay levels by name, its own 18 as a preset, or an enumeration of yours.

RocketMQ's named weakness is the granularity of the levels. Here a level is a name, and any other delay works as well.
"""

import asyncio
import datetime
import enum
import os
from typing import Any

from emq import App, Message
from emq.runtime import errors
from emq.timetable import delay_levels

app = App(os.environ.get("EMQ_STORE", "memory:"))


class Delay(enum.Enum):
    """One place for all delays of an application."""

    PAYMENT_CHECK = "payment check"
    ABANDONED_BASKET = "30m"


@app.handler("orders")
async def check(message: Message) -> None:
    late_ms = app.clock.now() * 1000 - float(message.payload.split()[-1])
    print(f"{message.payload.split()[0].decode()}: {late_ms:.0f} ms late")


async def publish(name: str, seconds: float, **when: Any) -> None:
    await app.publish("orders", f"{name} {(app.clock.now() + seconds) * 1000}", **when)


async def main() -> None:
    async with app:
        own = {"payment check": 1.25}
        topic = await app.create_topic("orders", qps=100, delay_levels={**delay_levels.ROCKETMQ, **own}, exist_ok=True)
        print(f"{len(delay_levels.ROCKETMQ)} levels: {', '.join(delay_levels.ROCKETMQ)}")
        async with app.running():
            await asyncio.sleep(1)
            await publish("level", 1.0, delay="1s")
            await publish("enum", 1.25, delay=Delay.PAYMENT_CHECK)
            await publish("timedelta", 1.5, delay=datetime.timedelta(seconds=1.5))
            await publish("any", 1.234, delay_ms=1_234)
            basket = await app.publish("orders", "basket 17", delay=Delay.ABANDONED_BASKET)
            try:
                await app.publish("orders", "x", delay="25s")
            except errors.InvalidMessage as exc:
                print("refused:", str(exc)[:48])
            await asyncio.sleep(1.7)
            print("bought after all, taken back:", await app.recall(topic.name, basket) == {basket})


asyncio.run(main())

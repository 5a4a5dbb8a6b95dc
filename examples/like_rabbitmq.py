"""What RabbitMQ offers: time to live, dead letters, a maximal length, priorities, prefetch, publisher confirms.

RabbitMQ's named weakness is an expired message behind an unexpired one, which waits for it. Here it does not.
"""

import asyncio
import os
import time

from emq import App, Message
from emq.runtime import errors

app = App(os.environ.get("EMQ_STORE", "memory:"))
order: list[str] = []
running = most_running = 0


@app.handler("mail")
async def send(message: Message) -> None:
    order.append(message.payload.decode())


@app.handler("thumbnails")
async def shrink(message: Message) -> None:
    global running, most_running
    running += 1
    most_running = max(most_running, running)
    await asyncio.sleep(0.02)
    running -= 1


async def main() -> None:
    async with app:
        # Time to live: the topic's or the message's, whichever is shorter. One start a second makes a backlog.
        await app.create_topic("mail", qps=1, ttl_s=2.5, max_length=8, exist_ok=True)
        begin = time.time()
        for number in range(1, 6):
            await app.publish("mail", f"letter {number}", priority="mid")
        await app.publish("mail", "code 1234", priority="low", ttl_s=1.5)  # behind all that live longer
        await app.publish("mail", "too patient", priority="low", ttl_s=3_600)
        await app.publish("mail", "alarm", priority="high")  # a confirm: publish returns when the store has it
        try:
            await app.publish("mail", "letter 6")
        except errors.TopicFull as exc:
            print("refused:", exc)

        await app.create_topic("thumbnails", qps=500, max_in_flight=3, exist_ok=True)  # prefetch
        await app.publish_many("thumbnails", [f"picture {number}" for number in range(40)])
        async with app.running():
            await asyncio.sleep(3)
            print("order:", ", ".join(order))
            async for letter in app.dead_letters("mail"):
                print(f"dead: {letter.payload.decode()}, {letter.reason} after {letter.dead_ms / 1000 - begin:.1f} s")
            print(f"at most {most_running} in flight")


asyncio.run(main())

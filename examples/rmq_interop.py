"""Other programs at the same queue: one that knows only ZADD and CRC32 produces for us, and consumes what we publish.

Starts a Redis or Valkey of its own and needs the extras `redis` and `servers`.
"""

import asyncio
import time
import zlib
from typing import Any

import emq_servers as servers
from emq import App, EMQError, Message

try:
    import redis
except ModuleNotFoundError:
    raise SystemExit("rmq_interop.py: the module 'redis' is missing; install the extras redis and servers") from None

SLOTS = 4


def stranger_adds(server: redis.Redis, topic: str, content: bytes, priority: int) -> None:
    """The published layout: slot = CRC32(content) modulo the number of slots, key = <topic>_<slot>."""
    server.zadd(f"{topic}_{zlib.crc32(content) % SLOTS}", {content: priority})


def stranger_takes(server: redis.Redis, topic: str) -> list[bytes]:
    """What is due in any slot: by the lowest score, which is a time in milliseconds."""
    found: list[bytes] = []
    for key in (f"{topic}_{slot}" for slot in range(SLOTS)):
        due: list[Any] = server.zrange(key, 0, int(time.time() * 1000), byscore=True)
        found += [content for content in due if server.zrem(key, content)]
    return sorted(found)


async def main() -> None:
    with servers.start_redis() as server, redis.Redis.from_url(server.url) as stranger:
        app = App(server.url, database="sqlite://")

        @app.handler("images")
        async def handle(message: Message) -> None:
            print(f"we got {message.payload.decode()}, priority {message.score:g}")

        async with app:
            await app.create_topic("images", qps=100, kind="priority", slots=SLOTS)
            await app.create_topic("reports", qps=100, kind="fixed_time", slots=SLOTS)
            for number in (1, 2, 3):
                stranger_adds(stranger, "images", b"image %d" % number, 20 + number)
            await app.publish_many("reports", ["report 1", "report 2"], delay_ms=200)
            await app.publish("reports", "report of tomorrow", delay_ms=86_400_000)
            async with app.running():
                await asyncio.sleep(1.5)
                print("the stranger got", stranger_takes(stranger, "reports"))
                print("and left", sum(stranger.zcard(f"reports_{slot}") for slot in range(SLOTS)))


try:
    asyncio.run(main())
except EMQError as exc:
    raise SystemExit(f"rmq_interop.py: {exc}") from None

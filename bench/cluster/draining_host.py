"""A host process that counts its starts: `python -m bench.cluster.draining_host OPTIONS`, for `bench.cluster.crew`.

SIGTERM ends the process cleanly. OPTIONS is a JSON object: `name` of the host, `store`, `database`, `member` (the
number of the process), and `samples`. Every tenth of a second, the process writes to the file `samples` how many
messages it has started and the CPU seconds it has used; see `bench.cluster.series`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import emq
from bench.cluster.series import SAMPLE_S, SeriesFile
from bench.support import program
from emq.storage.message import Message


async def main(name: str, store: str, database: str, member: int, samples: str) -> None:
    started = 0

    async def handle(_: Message) -> None:
        nonlocal started
        started += 1

    async def sample() -> None:
        while True:
            file.add(started, time.process_time())
            await asyncio.sleep(SAMPLE_S)

    file = SeriesFile(Path(samples))
    app = emq.App(store, database=database, options=emq.Settings(host_name=name))
    app.handlers.bind("*", handle)
    async with app:
        sampling = asyncio.create_task(sample())
        await app.run_until_signal(app.membership(member))
        sampling.cancel()
    file.add(started, time.process_time())


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    program.run(main)

"""A host process that is watched from outside: `python -m bench.tenants.host_process OPTIONS`.

SIGTERM ends the process cleanly. OPTIONS is a JSON object: `name` of the host, `store`, `database`, `starts` and
`ready`. The process writes each start to the file `starts` (`bench.tenants.starts`), and to the file `ready` once it
has acquired its groups and read all queues for the first time. Between messages it does nothing but what a host does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path

import emq
from bench.support import program
from bench.support.backlog import number_of
from bench.tenants import family
from bench.tenants.starts import StartFile
from emq.host.host import Host
from emq.storage.message import Message

LOOK_S = 0.05


async def started(app: emq.App, groups: int) -> Host:
    """Return the app's host once it has acquired this many groups: a former plan may have given it fewer."""
    while app.host is None:
        await asyncio.sleep(LOOK_S)
    await app.host.running.wait()
    while len(app.host.ownership.groups) < groups:
        await asyncio.sleep(LOOK_S)
    return app.host


async def tell(app: emq.App, path: Path, groups: int) -> None:
    host = await started(app, groups)
    ready_s = time.monotonic()
    while len(host.work.readiness):
        await asyncio.sleep(LOOK_S)
    written = path.with_suffix(".new")
    written.write_text(json.dumps({"ready_s": ready_s, "groups": len(host.ownership.groups)}))
    written.rename(path)


async def main(name: str, store: str, database: str, starts: str, ready: str, groups: int) -> None:
    file = StartFile(Path(starts))

    async def handle(message: Message) -> None:
        file.add(number_of(message.payload))

    app = emq.App(store, database=database, options=emq.Settings(host_name=name))
    app.handlers.bind(family.NAME, handle)
    async with app:
        telling = asyncio.create_task(tell(app, Path(ready), groups))
        await app.run_until_signal()
        telling.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    program.run(main)

"""A host of a version of EMQ: `python level_host_process.py STORE DATABASE NAME LEVEL RECEIPTS`.

Version 2 brought the option `dedupe_s`, with feature level 2. Version 1 does not know it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

import emq
from emq.database import levels
from emq.runtime.settings import Settings
from emq.topics import row_codec

SINCE = {"dedupe_s": 2}


class _OldDecoder:
    def __init__(self, real: Any) -> None:
        self._real = real

    def decode(self, body: str) -> Any:
        if "dedupe_s" in body:
            raise msgspec.ValidationError("Object contains unknown field `dedupe_s` - at `$.options`")
        return self._real.decode(body)


def become(level: int) -> None:
    """Behave as the version of EMQ that has this feature level."""
    levels.LEVEL, levels.SINCE = level, SINCE if level > 1 else {}
    if level == 1:
        row_codec._decoder = _OldDecoder(row_codec._decoder)  # type: ignore[assignment]


async def main(store: str, database: str, name: str, receipts: Path) -> None:
    app = emq.App(options=Settings(store=store, database=database, host_name=name, session_timeout_s=4.0))

    @app.handler("*")
    async def handle(m: emq.Message) -> None:
        with receipts.open("a") as file:
            file.write(f"{name} {m.topic} {m.payload.decode()}\n")

    async with app:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.stop)
        await app.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    become(int(sys.argv[4]))
    try:
        asyncio.run(main(*sys.argv[1:4], Path(sys.argv[5])))
    except emq.EMQError as exc:
        sys.exit(f"error: {exc}")

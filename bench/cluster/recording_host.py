"""A host process that records its starts: `python -m bench.cluster.recording_host OPTIONS`, for `bench.cluster.crew`.

SIGTERM ends the process cleanly. OPTIONS is a JSON object: `name` of the host, `starts` (the file, see
`bench.cluster.starts`), and the settings `store`, `database`, `cluster` and `session_timeout_s`.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import emq
from bench.cluster.starts import StartFile
from bench.support import program


async def main(name: str, starts: str, **settings: Any) -> None:
    app = emq.App(options=emq.Settings(host_name=name, **settings))
    app.handlers.bind("*", StartFile(Path(starts)).handle)
    async with app:
        await app.run_until_signal()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
    program.run(main)

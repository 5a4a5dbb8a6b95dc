"""An API worker's runner of replays in a process of its own, for tests that kill or stop it.

Usage: push_runner_process.py STORE DATABASE LEASE_S

Prints the runner's name in a line once it looks for replays.
"""

from __future__ import annotations

import asyncio
import sys

import emq
from emq_push.service import replay_runner
from emq_push.service.parts import Parts


async def main(store: str, database: str, lease_s: float) -> None:
    replay_runner.LEASE_S = lease_s
    replay_runner.LOOK_S = 0.1
    async with emq.App(store, database=database) as app:
        runner = replay_runner.ReplayRunner(Parts(app))
        sys.stdout.write(f"{runner.name}\n")
        sys.stdout.flush()
        await runner.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))

"""`python -m emq.servers KIND` runs one server in the foreground until Ctrl-C and prints its URL."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from emq import errors
from emq.servers.postgres import start_postgres
from emq.servers.redis import start_redis


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one server in the foreground; returns the exit status for the shell."""
    parser = argparse.ArgumentParser(prog="python -m emq.servers", description="Run a server until Ctrl-C.")
    parser.add_argument("kind", choices=["redis", "postgres"])
    parser.add_argument("--port", type=int, help="default: a free one")
    parser.add_argument("--directory", type=Path, help="where data stays; default: a temporary one, removed at the end")
    chosen = parser.parse_args(arguments)
    start = start_redis if chosen.kind == "redis" else start_postgres
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with start(directory=chosen.directory, port=chosen.port) as server:
            sys.stdout.write(f"{server.url}\n")
            sys.stdout.flush()
            return server.wait()
    except KeyboardInterrupt:
        return 0
    except errors.EMQError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())

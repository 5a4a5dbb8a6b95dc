"""`python -m emq_servers KIND` prints the URL of a new server and runs the server in the foreground until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import emq_servers as servers
from emq.runtime import errors


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one server in the foreground; returns the exit status for the shell."""
    parser = argparse.ArgumentParser(prog="python -m emq_servers", description="Run a server until Ctrl-C.")
    parser.add_argument("kind", choices=["redis", "postgres", "zookeeper", "ensemble"])
    parser.add_argument("--port", type=int, help="port (default: a free one; an ensemble always takes free ones)")
    parser.add_argument(
        "--directory", type=Path, help="directory for the data (default: a temporary one, removed at the end)"
    )
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _start(chosen.kind, chosen.directory, chosen.port) as server:
            sys.stdout.write(f"{server.url}\n")
            sys.stdout.flush()
            return server.wait()
    except KeyboardInterrupt:
        return 0
    except errors.EMQError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _start(kind: str, directory: Path | None, port: int | None) -> servers.Server | servers.Ensemble:
    match kind:
        case "redis":
            return servers.start_redis(directory=directory, port=port)
        case "postgres":
            return servers.start_postgres(directory=directory, port=port)
        case "zookeeper":
            return servers.start_zookeeper(directory=directory, port=port)
        case _:
            return servers.start_ensemble(directory=directory)


if __name__ == "__main__":
    sys.exit(main())

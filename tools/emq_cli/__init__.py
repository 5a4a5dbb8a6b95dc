"""The `emq` command line. `main` is its entry point; the commands are assembled in `emq_cli.commands`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run one command; see `emq_cli.running.run`. Ctrl-C before the command begins ends it without a word."""
    try:
        from emq_cli import running  # loading takes a moment, in which Ctrl-C may come
    except KeyboardInterrupt:
        sys.exit(130)
    running.run()

"""The `emq` command line. `main` is its entry point; the commands are assembled in `emq.cli.commands`."""

from __future__ import annotations

import sys

from emq import standard_output


def main() -> None:
    """Run one command. Exits with 0, 1 (failure, said in one line on standard error) or 2 (usage)."""
    sys.stdout = standard_output.whole(sys.stdout)
    try:
        # Loading takes a moment, and Ctrl-C must already be handled by then.
        from emq.cli.commands import app

        app(prog_name="emq")
    except KeyboardInterrupt:
        print("emq: interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(1)

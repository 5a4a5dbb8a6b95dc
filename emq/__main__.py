"""`python -m emq`: the command `emq`, as the installation has it, also where no script of it is on the path."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    try:
        from importlib import metadata  # it takes a moment, in which Ctrl-C may come

        [command] = metadata.entry_points(group="console_scripts", name="emq")
        run = command.load()
    except KeyboardInterrupt:
        sys.exit(130)
    sys.argv[0] = "emq"
    sys.exit(run())

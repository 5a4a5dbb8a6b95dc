"""`python -m emq`: the command `emq`, as the installation has it, also where no script of it is on the path."""

from __future__ import annotations

import sys
from importlib import metadata

if __name__ == "__main__":
    [command] = metadata.entry_points(group="console_scripts", name="emq")
    sys.argv[0] = "emq"
    sys.exit(command.load()())

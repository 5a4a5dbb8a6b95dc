"""The processes that a benchmark starts: programs whose options are one JSON object on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

import emq


def run(main: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Run `main` with the options of this process; end with EMQ's error in one line, if there is one."""
    try:
        uvloop.run(main(**json.loads(sys.argv[1])))
    except emq.EMQError as exc:
        sys.exit(f"{exc}")

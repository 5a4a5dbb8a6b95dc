"""The texts of the Lua scripts, as they are sent to a server."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import re
from typing import NamedTuple

_INCLUDE = re.compile(r"^-- include (\w+)\n", re.MULTILINE)


class Script(NamedTuple):
    """Attributes:
    digest: by which the server knows the text.
    """

    digest: str
    text: str


@functools.cache
def script(name: str, allow_oom: bool = False, sharded: bool = False) -> Script:
    """lua/<name>.lua, with what it includes in the place of the line that says so.

    Args:
        allow_oom: it runs on a full server too.
        sharded: queues and lanes wake through the sharded channels of a cluster. The slots of sorted topics do not:
            each lies in a hash slot of its own, and so would its channel.
    """
    text = _INCLUDE.sub(lambda line: _read(line[1]), _read(name))
    if allow_oom:
        text = text.replace("#!lua\n", "#!lua flags=allow-oom\n", 1)
    if sharded and not name.startswith("slot_"):
        text = text.replace("redis.call('PUBLISH'", "redis.call('SPUBLISH'")
    return Script(hashlib.sha1(text.encode()).hexdigest(), text)


def _read(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("lua", f"{name}.lua").read_text()

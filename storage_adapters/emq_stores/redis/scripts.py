"""The texts of the Lua scripts, as the adapter sends them to a server."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import re
from typing import NamedTuple

_INCLUDE = re.compile(r"^-- include (\w+)\n", re.MULTILINE)


class Script(NamedTuple):
    """A script and the name under which the server finds it.

    Attributes:
        digest: SHA-1 of the text; the server finds the script by it.
        text: source of the script.
    """

    digest: str
    text: str


@functools.cache
def script(name: str, allow_oom: bool = False, sharded: bool = False, listed: bool = False) -> Script:
    """Return the script lua/<name>.lua, with each `-- include` line replaced by the included text.

    Args:
        name: name of the file without its extension.
        allow_oom: let the script run on a full server as well.
        sharded: wake queues and lanes through the sharded channels of a cluster. Slots of sorted topics use plain
            channels, since each slot is in a hash slot of its own.
        listed: refuse a call to a range of hash slots that another server of the list serves; see lua/listed.lua.
    """
    text = _INCLUDE.sub(lambda line: _read(line[1]), _read(name))
    if allow_oom:
        text = text.replace("#!lua\n", "#!lua flags=allow-oom\n", 1)
    if sharded and not name.startswith("slot_"):
        text = text.replace("redis.call('PUBLISH'", "redis.call('SPUBLISH'")
    if listed:
        check = _read("listed")
        if "no-writes" in text.partition("\n")[0]:
            check = check.replace("only_reads = false", "only_reads = true", 1)
        text = text.replace("\n", f"\n{check}", 1)
    return Script(hashlib.sha1(text.encode()).hexdigest(), text)


def _read(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("lua", f"{name}.lua").read_text()

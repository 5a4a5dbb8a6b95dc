"""Folds: rules that make one body of the bodies of two messages with the same merge key.

    latest   the newer body
    sum      bodies are numbers; their sum                      max, min   the larger, the smaller
    union    bodies are lines of text; each line once, in the order in which it first came
    count    the number of bodies, whatever they hold
    lua      a Lua chunk of your own: `local older, newer = ...; return <one string>`; an operator must allow it

A chunk sees only assert, error, ipairs, next, pairs, select, tonumber, tostring, type, unpack, math, string and table.
In memory and SQL stores, a chunk may run at most `MAX_INSTRUCTIONS` and hold at most `MAX_MEMORY`. Redis has no such
limits: a chunk that never ends blocks its server. No store limits the matching of patterns. Therefore only the setting
`lua_folds` lets topics with a chunk be created.

Numbers are finite IEEE doubles, as in Redis's Lua, in decimal notation. A number that is whole and below 2^53 is
written without a fraction. A body that is not a number is refused, and so is a sum that would not be finite. Each store
applies these rules atomically with the add. The stores in Python use this module; the other stores must agree with it.
"""

from __future__ import annotations

import functools
import importlib.resources
import importlib.util
import math
from collections.abc import Callable
from typing import Any

from emq.runtime import errors, extras
from emq.storage.slot_store import Fold

NAMES = ("latest", "sum", "max", "min", "union", "count", "lua")
NUMERIC = frozenset({"sum", "max", "min"})

MAX_INSTRUCTIONS = 10_000_000
"""Most Lua instructions in one call: about a tenth of a second."""

MAX_MEMORY = 128 << 20
"""Most bytes that one chunk's interpreter may hold: room for a fold of two bodies of 10 MB."""

MAX_KEPT_MEMORY = 1 << 20
"""A call that leaves more bytes than this in its interpreter is followed by a collection of its garbage."""


def check(fold: Fold, body: bytes) -> None:
    """Raise `InvalidMessage` unless `body` is of the kind that the fold works on."""
    if fold.name in NUMERIC:
        _number(fold, body)


def _number(fold: Fold, body: bytes) -> float:
    try:
        number = float(body)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or b"_" in body:
        raise errors.InvalidMessage(f"payload {body[:40]!r} is not a number, which fold {fold.name!r} needs; send one")
    return number


def initial(fold: Fold, body: bytes) -> bytes:
    """Return the body to store for a first add."""
    if fold.name == "count":
        return b"1"
    if fold.name == "union":
        return _union(body, b"")
    return body


def apply(fold: Fold, older: bytes, newer: bytes) -> bytes:
    """Fold two bodies, each of them `initial` or folded before.

    Raises:
        InvalidMessage: a body is not a number, a Lua chunk of the user's failed, or the package `lupa` is missing.
    """
    match fold.name:
        case "latest":
            return newer
        case "sum" | "count":
            return _sum(fold, older, newer)
        case "max":
            return older if _number(fold, older) >= _number(fold, newer) else newer
        case "min":
            return older if _number(fold, older) <= _number(fold, newer) else newer
        case "union":
            return _union(older, newer)
        case _:
            return _call(fold, older, newer)


def _sum(fold: Fold, older: bytes, newer: bytes) -> bytes:
    total = _number(fold, older) + _number(fold, newer)
    if not math.isfinite(total):
        raise errors.InvalidMessage(f"the sum of {older[:40]!r} and {newer[:40]!r} is beyond the range of a number")
    return written(total)


def written(number: float) -> bytes:
    """A number as text: without a fraction if it is whole and exact, else with the digits that give the same double."""
    if number.is_integer() and abs(number) < 2**53:
        return b"%d" % int(number)
    return b"%.17g" % number


def _union(older: bytes, newer: bytes) -> bytes:
    lines = [line for body in (older, newer) for line in body.split(b"\n") if line]
    return b"\n".join(dict.fromkeys(lines))


def _call(fold: Fold, older: bytes, newer: bytes) -> bytes:
    try:
        worked, result = compiled(fold.lua)(older, newer)
    except errors.EMQError:
        raise
    except Exception as exc:
        why = str(exc) or f"it took more than {MAX_MEMORY >> 20} MiB of memory"  # the only error that has no text
        raise errors.InvalidMessage(f"the topic's Lua fold failed: {why}") from exc
    if not worked:
        why = result.decode(errors="replace") if isinstance(result, bytes) else repr(result)
        raise errors.InvalidMessage(f"the topic's Lua fold failed: {why}")
    if not isinstance(result, bytes):
        raise errors.InvalidMessage(f"the topic's Lua fold returned {result!r}; it must return one string")
    return result


def check_lua(lua: str) -> None:
    """Raise `InvalidMessage` if the chunk is not valid Lua. Checks nothing without `lupa`; the store checks then."""
    if importlib.util.find_spec("lupa") is not None:
        compiled(lua)


@functools.lru_cache(maxsize=64)
def compiled(lua: str) -> Callable[[bytes, bytes], tuple[bool, Any]]:
    """The chunk as a function of two bodies, in an interpreter of its own; see `fold_sandbox.lua`.

    Raises:
        InvalidMessage: the chunk is not valid Lua, or `lupa` is not installed.
    """
    try:
        from lupa import LuaRuntime
    except ImportError:
        raise errors.InvalidMessage(f"a Lua fold outside of Redis needs lupa; {extras.remedy('lua')}") from None
    runtime = LuaRuntime(
        encoding=None,
        register_eval=False,
        register_builtins=False,
        attribute_filter=_nothing_of_python,
        max_memory=MAX_MEMORY,
    )
    sandbox = importlib.resources.files(__package__).joinpath("fold_sandbox.lua").read_bytes()
    found = runtime.execute(sandbox, lua.encode(), MAX_INSTRUCTIONS)
    if isinstance(found, tuple):
        raise errors.InvalidMessage(f"the topic's Lua fold is not valid Lua: {found[1].decode(errors='replace')}")

    def call(older: bytes, newer: bytes) -> tuple[bool, Any]:
        try:
            return found(older, newer)  # type: ignore[no-any-return]
        finally:
            if runtime.get_memory_used() > MAX_KEPT_MEMORY:  # Lua collects only when more is asked for
                runtime.gccollect()

    return call


def _nothing_of_python(_obj: object, name: object, _setting: bool) -> object:
    raise AttributeError(f"a fold may not use {name!r}")

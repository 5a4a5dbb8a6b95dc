"""Finds out where an object graph still holds a name."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

_LEAVES = (
    int,
    float,
    complex,
    bool,
    type(None),
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    asyncio.AbstractEventLoop,
)


def paths_to(mark: str, **roots: Any) -> list[str]:
    """Return ways from the roots to texts that contain `mark`: attributes, items, closures, bound methods, weak sets.

    Objects that only a suspended coroutine holds are not found.
    """
    found: list[str] = []
    seen: set[int] = set()
    kept: list[object] = []  # so that no id comes twice
    todo = deque((value, name) for name, value in roots.items())
    while todo:
        value, path = todo.popleft()
        if isinstance(value, (str, bytes, bytearray)):
            if (mark if isinstance(value, str) else mark.encode()) in value:
                found.append(f"{path}: {value[:60]!r}")
            continue
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        todo.extend((child, path + step) for child, step in _children(value))
    return found


def _children(value: Any) -> Iterator[tuple[Any, str]]:
    if isinstance(value, dict):
        for key, item in list(value.items()):
            yield key, ".keys"
            yield item, f"[{key!r}]"[:60]
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        for item in list(value):
            yield item, "[]"
    elif isinstance(value, types.MethodType):
        yield value.__self__, ".__self__"
        yield value.__func__, ".__func__"
    elif isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                yield cell.cell_contents, ".<closure>"
    else:
        yield from _attributes(value)


def _attributes(value: Any) -> Iterator[tuple[Any, str]]:
    """Of our own objects; those of libraries hold what they do."""
    if type(value).__name__ == "WeakSet":
        yield list(value), "[]"
    if not type(value).__module__.startswith(("emq", "support")):
        return
    yield from ((item, f".{name}") for name, item in list(getattr(value, "__dict__", {}).items()))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__weakref__", "__dict__") and hasattr(value, name):
                yield getattr(value, name), f".{name}"
    for name in getattr(value, "__struct_fields__", ()):
        yield getattr(value, name), f".{name}"

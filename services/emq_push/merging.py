"""Changes of documents by JSON Merge Patch, RFC 7396."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(document: object, patch: Any) -> Any:
    """Return a document with a patch: null removes a member, an object changes members, and all else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(document) if isinstance(document, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def patch_of(before: object, after: Any) -> Any:
    """Return the patch by which a document without nulls becomes another one."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return after
    changed = {name: patch_of(before.get(name), value) for name, value in after.items() if before.get(name) != value}
    return {**dict.fromkeys(before.keys() - after.keys()), **changed}

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

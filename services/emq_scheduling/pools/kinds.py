"""The kind of a limit as text, behind its amount: `rolling`, `calendar in Europe/Berlin`, `bucket of 50`."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from emq.runtime import errors
from emq.runtime.inputs import shown
from emq_scheduling.model import Limit

_WRITTEN = re.compile(r"(rolling|calendar|bucket)(?:\s+of\s+(\S+))?(?:\s+in\s+(\S+))?")


def with_kind(limit: Limit, text: str, place: str) -> Limit:
    """Return the limit with the kind in a text; with its own for an empty one.

    Args:
        place: the beginning of errors.

    Raises:
        InvalidPool: the text cannot be read. `rules.check` checks which parts go together.
    """
    if not text:
        return limit
    found = _WRITTEN.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        values: dict[str, Any] = {"kind": found[1], "burst": None, "zone": found[3]}
        if found[2] is not None:
            values["burst"] = float(found[2])
    except ValueError:
        raise errors.InvalidPool(
            f"{place}: kind {shown(text)} cannot be read; write rolling, calendar, calendar in ZONE, bucket or bucket "
            "of UNITS"
        ) from None
    return msgspec.structs.replace(limit, **values)

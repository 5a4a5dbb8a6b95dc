"""A clear error for commands whose optional packages are missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from emq import errors
from emq.extras import remedy


@contextlib.contextmanager
def needing(what: str, extras: str) -> Iterator[None]:
    """A block that imports optional packages.

    Args:
        what: needs them, for the text.
        extras: the extras of EMQ that bring them, separated by commas.

    Raises:
        EMQError: one is missing; the text has the remedy.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        raise errors.EMQError(f"{what} needs the module {exc.name!r}; {remedy(*extras.split(','))}") from exc

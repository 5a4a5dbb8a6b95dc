"""Faults planted in the scripts and statements of the real stores, to see that a simulation finds them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple
from unittest import mock

from emq.database import statements
from emq_stores.redis import scripts
from emq_stores.sql import backend


class Fault(NamedTuple):
    """Attributes:
    name: of the script in `storage_adapters/emq_stores/redis/lua`, or of the statement in
    `storage_adapters/emq_stores/sql/sql/sqlite`. right: a part of its text. wrong: what stands there instead.
    """

    name: str
    right: str
    wrong: str


@contextlib.contextmanager
def in_lua(fault: Fault) -> Iterator[None]:
    """Send the server the wrong text."""
    read = scripts._read

    def misread(name: str) -> str:
        return _spoilt(fault, read(name)) if name == fault.name else read(name)

    scripts.script.cache_clear()
    with mock.patch("emq_stores.redis.scripts._read", misread):
        yield
    scripts.script.cache_clear()


@contextlib.contextmanager
def in_sql(fault: Fault) -> Iterator[None]:
    """Give SQLite the wrong text."""
    read = statements.read

    def misread(package: str, dialect: str, name: str) -> str:
        text = read(package, dialect, name)
        return _spoilt(fault, text) if (package, name) == (backend.PACKAGE, fault.name) else text

    backend._prepared.cache_clear()
    with mock.patch("emq.database.statements.read", misread):
        yield
    backend._prepared.cache_clear()


def _spoilt(fault: Fault, text: str) -> str:
    assert fault.right in text, f"{fault.name} has no {fault.right!r} any more"
    return text.replace(fault.right, fault.wrong)

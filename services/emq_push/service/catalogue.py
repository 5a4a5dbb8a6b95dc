"""The event types as a process knows them, for checks of messages when they are sent.

A process looks every `LOOK_US` whether the catalogue has changed: one look-up of one row, in a transaction that accepts
messages anyway. It reads the names again only if it has, and a schema only when a message of its type comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from emq_push.records.event_types import Check, EventTypes, Head
from emq_push.service import payload_schemas
from emq_push.service.incoming import Incoming
from emq_push.service.payload_schemas import Validator
from emq_push.service.refusals import Invalid

LOOK_US = 2_000_000
"""Microseconds for which a process may know an old catalogue, after a change by another one."""
MOST_S = 0.5
"""Seconds of a processor for the checks of one request; beyond them it is refused."""
MOST_COMPILED = 4 << 20
"""Most bytes of schemas, as JSON, that a process keeps compiled; beyond it, it begins again with none."""


class _Known(NamedTuple):
    """The catalogue at one time.

    Attributes:
        types: by name, without descriptions.
        is_plain: no message needs a check.
    """

    changed_us: int = 0
    check: Check = "off"
    types: Mapping[str, Head] = {}
    is_plain: bool = True


class Catalogue:
    """Checks messages, on threads of the database.

    Args:
        environment: "online" or "sandbox".
    """

    def __init__(self, environment: str) -> None:
        self._rows = EventTypes(environment)
        self._known = _Known()
        self._looked_us: int | None = None
        self._lock = threading.Lock()
        self._compiled: dict[tuple[str, str, int], Validator] = {}
        self._size = 0

    def forget(self) -> None:
        """Look again before the next check, since this process has changed the catalogue."""
        self._looked_us = None

    def check(self, connection: sa.Connection, messages: Iterable[tuple[str, Incoming]], now_us: int) -> None:
        """Check messages, if the catalogue says so.

        Args:
            messages: each with the JSON pointer to it.

        Raises:
            Invalid: an event type is unknown, a payload does not fit the schema of its type, or checks would take long.
        """
        known = self._current(connection, now_us)
        if known.is_plain:
            return
        begun_s = time.thread_time()
        for at, message in messages:
            if time.thread_time() - begun_s > MOST_S:
                text = "the checks of these messages take too long; send fewer of them in one request"
                raise Invalid("payload_too_large", text, at)
            type_ = known.types.get(message.event_type)
            if type_ is None:
                if known.check == "strict":
                    raise _unknown(message.event_type, f"{at}/event_type")
            elif type_.versions and _is_checked(type_, known.check):
                self._check(connection, type_, message, at)

    def check_patterns(self, connection: sa.Connection, patterns: Sequence[str], now_us: int) -> None:
        """Raise `Invalid` for an event type of an endpoint that no message can have. Patterns with a star may stay."""
        known = self._current(connection, now_us)
        if known.check == "strict":
            for number, name in enumerate(patterns):
                if not name.endswith("*") and name not in known.types:
                    raise _unknown(name, f"/event_types/{number}")

    def _current(self, connection: sa.Connection, now_us: int) -> _Known:
        looked_us = self._looked_us
        if looked_us is None or not 0 <= now_us - looked_us < LOOK_US:
            # Noted before the look: a change of this process in between is looked for again.
            self._looked_us = now_us
            try:
                self._look(connection)
            except BaseException:
                self._looked_us = None
                raise
        return self._known

    def _look(self, connection: sa.Connection) -> None:
        changed_us = self._rows.changed_us(connection)
        if changed_us == self._known.changed_us:
            return
        settings, _, changed_us = self._rows.of_all(connection)
        types = {head.name: msgspec.structs.replace(head, description="") for head in self._rows.all(connection)}
        needs = settings.check == "strict" or any(
            head.versions and _is_checked(head, settings.check) for head in types.values()
        )
        self._known = _Known(changed_us, settings.check, types, not needs)

    def _check(self, connection: sa.Connection, type_: Head, message: Incoming, at: str) -> None:
        version = message.schema_version or type_.newest
        if version not in type_.versions:
            versions = ", ".join(type_.versions)
            text = f"event type {type_.name!r} has no schema of version {version}; it has {versions}"
            raise Invalid("unknown_schema_version", text, f"{at}/schema_version")
        validator = self._validator(connection, type_, version)
        if validator is None:  # it was deleted meanwhile
            return
        payload_schemas.check_json(validator, bytes(message.payload), f"{at}/payload")

    def _validator(self, connection: sa.Connection, type_: Head, version: str) -> Validator | None:
        key = (type_.name, version, type_.changed_us)
        found = self._compiled.get(key)
        if found is None:
            row = self._rows.find(connection, type_.name)
            schema: Any = None if row is None else row.schemas.get(version)
            if schema is None:
                return None
            found, size = payload_schemas.compiled(schema), len(msgspec.json.encode(schema))
            with self._lock:
                if self._size + size > MOST_COMPILED:
                    self._compiled.clear()
                    self._size = 0
                self._compiled[key] = found
                self._size += size
        return found


def _is_checked(type_: Head, check: Check) -> bool:
    return check != "off" if type_.checked is None else type_.checked


def _unknown(name: str, pointer: str) -> Invalid:
    text = f"event type {name[:128]!r} is not in the catalogue, which takes no others; see GET /v1/event-types"
    return Invalid("unknown_event_type", text, pointer)

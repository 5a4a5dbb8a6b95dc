"""Event types: the catalogue from which tenants choose, with the schemas that messages are checked by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
import sqlalchemy as sa

from emq_push.records import event_types as records
from emq_push.records.cursors import Page
from emq_push.records.event_types import CatalogueSettings, EventType, EventTypes, EventTypeSettings, Head
from emq_push.service import payload_schemas
from emq_push.service.parts import Parts
from emq_push.service.refusals import Conflict, NotFound, check_version, converted

T = TypeVar("T")


class OfAll(NamedTuple):
    """What holds for all event types.

    Attributes:
        changed_us: when anything of the catalogue was last changed; 0 for never.
    """

    settings: CatalogueSettings
    changed_us: int


class EventTypeService:
    """Create, change, read and delete event types."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._rows = EventTypes(parts.environment)

    async def get(self, name: str) -> EventType:
        """Return an event type. Raises `NotFound`."""
        found = await self.find(name)
        if found is None:
            raise _unknown(name)
        return found

    async def find(self, name: str) -> EventType | None:
        """Return an event type; None if it is not in the catalogue."""
        return None if "\0" in name else await self._parts.read(lambda c: self._rows.find(c, name))

    async def page(self, limit: int, cursor: str = "") -> Page[Head]:
        """Return event types by name. Raises `InvalidCursor`."""
        return await self._parts.read(lambda c: self._rows.page(c, limit, cursor))

    async def all(self, *, archived: bool = False) -> list[Head]:
        """Return all event types by name; those that are archived only if they are wanted."""
        found = await self._parts.read(self._rows.all)
        return [head for head in found if archived or not head.archived]

    async def change(
        self,
        name: str,
        changes: Mapping[str, Any],
        actor: str,
        *,
        creates: bool = False,
        merges: bool = False,
        expected: int | None = None,
    ) -> tuple[EventType, bool]:
        """Change settings of an event type; the others keep their values. Return it, and whether it is new.

        Args:
            changes: fields of `EventTypeSettings`.
            creates: create the event type if it is missing; settings that are left out get their defaults.
            merges: `schemas` are the versions to change; None as a version removes it. Otherwise they are all versions.
            expected: `changed_us` of the version that is changed; 0 if the event type must be new, None for any.

        Raises:
            NotFound: there is no such event type.
            Invalid: the name or a setting is wrong, a schema is none, or the example does not fit the newest one.
            Conflict: the catalogue is full.
            OtherVersion: the event type has another version; nothing was changed.
        """
        converted({"event_type": name}, _Named)
        is_new = False

        def save(connection: sa.Connection, now_us: int) -> EventType:
            nonlocal is_new
            before = self._rows.find(connection, name)
            check_version(f"event type {name!r}", expected, 0 if before is None else before.changed_us)
            is_new = before is None
            if before is None:
                if not creates:
                    raise _unknown(name)
                if self._rows.count(connection) >= records.MOST:
                    raise Conflict(
                        "too_many_event_types", f"the catalogue has {records.MOST:,} types, which is the most"
                    )
            made = _changed(name, before, changes, now_us, merges=merges)
            self._rows.save(connection, made)
            action = "event_type.created" if is_new else "event_type.changed"
            self._parts.audit(connection, actor, action, name, changes=_shown(changes))
            return made

        # Outside of the transaction, which others wait for.
        await asyncio.to_thread(_check_schemas, changes.get("schemas") or {})
        return await self._write(save), is_new

    async def check_new(self, name: str, changes: Mapping[str, Any]) -> None:
        """Raise `Invalid` as `change` would that creates an event type; make nothing."""
        converted({"event_type": name}, _Named)
        await asyncio.to_thread(_check_schemas, changes.get("schemas") or {})
        _changed(name, None, changes, 0, merges=False)

    async def delete(self, name: str, actor: str, expected: int | None = None) -> None:
        """Delete an event type. Messages of this type are taken as any that are not in the catalogue.

        Raises:
            NotFound: there is no such event type.
            OtherVersion: it has another version.
        """

        def delete(connection: sa.Connection, _: int) -> None:
            found = self._rows.find(connection, name)
            if found is None:
                raise _unknown(name)
            check_version(f"event type {name!r}", expected, found.changed_us)
            self._rows.delete(connection, name)
            self._parts.audit(connection, actor, "event_type.deleted", name)

        await self._write(delete)

    async def of_all(self) -> OfAll:
        """Return what holds for all event types."""
        settings, _, changed_us = await self._parts.read(self._rows.of_all)
        return OfAll(settings, changed_us)

    async def change_all(self, changes: Mapping[str, Any], actor: str, expected: int | None = None) -> OfAll:
        """Change what holds for all event types.

        Args:
            changes: fields of `CatalogueSettings`.

        Raises:
            Invalid: a value is wrong.
            OtherVersion: the catalogue has another version.
        """

        def save(connection: sa.Connection, now_us: int) -> OfAll:
            before, created_us, _ = self._rows.of_all(connection)
            settings = converted({**msgspec.structs.asdict(before), **changes}, CatalogueSettings)
            self._rows.save_of_all(connection, settings, created_us, now_us)
            self._parts.audit(connection, actor, "event_types.changed", "", changes=dict(changes))
            return OfAll(settings, now_us)

        return await self._write(save, expected)

    async def _write(self, change: Callable[[sa.Connection, int], T], expected: int | None = None) -> T:
        """Change the catalogue; changes come one after another.

        Args:
            change: gets the time of the change, which is later than that of any change before.
            expected: the version of the catalogue that is changed; None for any.
        """

        def write(connection: sa.Connection) -> T:
            before_us, now_us = self._rows.hold(connection, self._parts.now_us())
            check_version("the catalogue", expected, before_us)
            return change(connection, now_us)

        made = await self._parts.write(write)
        self._parts.catalogue.forget()
        return made


class _Named(msgspec.Struct):
    event_type: records.Name


def _unknown(name: str) -> NotFound:
    return NotFound("unknown_event_type", f"there is no event type {name[:128]!r} in the catalogue")


def _changed(
    name: str, before: EventType | None, changes: Mapping[str, Any], now_us: int, *, merges: bool
) -> EventType:
    """Return an event type with changes. Raises `Invalid`."""
    values = {} if before is None else msgspec.structs.asdict(before.settings)
    given = dict(changes)
    if "schemas" in given:
        there = dict(values.get("schemas", {})) if merges and given["schemas"] is not None else {}
        schemas = {**there, **(given["schemas"] or {})}
        given["schemas"] = {version: schema for version, schema in schemas.items() if schema is not None}
    settings = converted({**values, **given}, EventTypeSettings)
    made = records.made(name, settings, now_us if before is None else before.created_us, now_us)
    if made.example is not None:
        example = payload_schemas.bounded(made.example, "the example", "/example")
        if made.newest:
            validator = payload_schemas.compiled(made.schemas[made.newest])
            payload_schemas.check_json(validator, msgspec.json.encode(example), "/example", "the example")
    return made


def _check_schemas(schemas: Mapping[str, Any]) -> None:
    """Raise `Invalid` for a schema that is none, too large, or too deep."""
    for version, schema in schemas.items():
        if schema is not None:
            pointer = f"/schemas/{version[:20]}"
            stored = payload_schemas.bounded(schema, f"the schema of version {version[:20]}", pointer)
            payload_schemas.compiled(stored, pointer)


def _shown(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes as the audit log has them: of schemas the versions alone, and no example."""
    shown = {name: value for name, value in changes.items() if name != "example"}
    if "schemas" in shown:
        shown["schemas"] = sorted(shown["schemas"] or {})
    if "example" in changes:
        shown["example"] = changes["example"] is not None
    return shown

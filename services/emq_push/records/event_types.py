"""The rows of event types, and what holds for all of them: the catalogue of an environment.

The catalogue's own row has the empty name. Its `changed_us` grows with each change of the catalogue, so that other
processes find by one look-up whether what they know is still true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import sqlalchemy as sa
from msgspec import Meta

from emq_push.records import cursors, rows
from emq_push.records.cursors import Page
from emq_push.records.endpoints import END, EVENT_TYPE
from emq_push.records.tables import event_types as table

MOST = 1_000
"""Most event types of an environment; each process keeps their names in memory."""
MOST_VERSIONS = 20

Name = Annotated[str, Meta(max_length=128, pattern=EVENT_TYPE[:-1] + END)]
Version = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,5}" + END)]
"""The number of a version, as JSON has it for the name of a member."""
Check = Literal["off", "known", "strict"]


class EventTypeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A caller's settings of an event type.

    Attributes:
        description: for people.
        schemas: JSON Schemas of payloads, by version: a number. The highest one counts unless a message names another.
        example: a payload, which fits the schema that counts; None for none.
        checked: whether payloads must fit; None for what the catalogue's settings say.
        archived: not offered any more. Messages of this type are taken and delivered as before.
    """

    description: Annotated[str, Meta(max_length=2000)] = ""
    schemas: Annotated[dict[Version, dict[str, Any]], Meta(max_length=MOST_VERSIONS)] = {}
    example: Any = None
    checked: bool | None = None
    archived: bool = False


class CatalogueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for all event types.

    Attributes:
        check: "off": messages are not checked; "known": payloads must fit the schema of their type, if it has one;
            "strict": event types that are not in the catalogue are refused, too.
    """

    check: Check = "off"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """An event type without its schemas and its example.

    Attributes:
        versions: of its schemas, the oldest first.
    """

    name: str
    description: str
    versions: tuple[str, ...]
    checked: bool | None
    archived: bool
    created_us: int
    changed_us: int

    @property
    def newest(self) -> str:
        """The version that counts; empty without a schema."""
        return self.versions[-1] if self.versions else ""


class EventType(Head, frozen=True, kw_only=True):
    """An event type."""

    schemas: Mapping[str, Any]
    example: Any

    @property
    def settings(self) -> EventTypeSettings:
        return EventTypeSettings(**{name: getattr(self, name) for name in EventTypeSettings.__struct_fields__})


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    description: str = ""
    versions: tuple[str, ...] = ()
    checked: bool | None = None
    archived: bool = False


class _Content(msgspec.Struct, frozen=True, omit_defaults=True):
    schemas: dict[str, Any] = {}
    example: Any = None


_encode = msgspec.json.Encoder().encode
_body, _content = msgspec.json.Decoder(_Body).decode, msgspec.json.Decoder(_Content).decode
_of_all = msgspec.json.Decoder(CatalogueSettings).decode
_HEAD: Sequence[sa.Column[Any]] = (table.c.name, table.c.body, table.c.created_us, table.c.changed_us)


def made(name: str, settings: EventTypeSettings, created_us: int, changed_us: int) -> EventType:
    """Return an event type with these settings."""
    versions = tuple(sorted(settings.schemas, key=int))
    values = {each: getattr(settings, each) for each in EventTypeSettings.__struct_fields__}
    return EventType(name=name, versions=versions, created_us=created_us, changed_us=changed_us, **values)


class EventTypes(rows.Rows):
    """The event types, and what holds for all of them."""

    table = table

    def changed_us(self, connection: sa.Connection) -> int:
        """Return when anything of the catalogue was last changed; 0 for never."""
        query = sa.select(table.c.changed_us).where(self._mine, table.c.name == "")
        return int(connection.execute(query).scalar() or 0)

    def of_all(self, connection: sa.Connection) -> tuple[CatalogueSettings, int, int]:
        """Return what holds for all event types, and when this was made and changed; 0 for never."""
        row = connection.execute(sa.select(*_HEAD).where(self._mine, table.c.name == "")).one_or_none()
        return (CatalogueSettings(), 0, 0) if row is None else (_of_all(row.body), row.created_us, row.changed_us)

    def hold(self, connection: sa.Connection, now_us: int) -> tuple[int, int]:
        """Note a change of the catalogue; other changes wait for the end of the transaction.

        Returns:
            When the catalogue was changed before, 0 for never; and the time of this change.
        """
        rows.add_missing(connection, table, [self._row("", CatalogueSettings(), _Content(), now_us, 0)])
        mine = (self._mine, table.c.name == "")
        before_us = int(connection.execute(sa.select(table.c.changed_us).where(*mine).with_for_update()).scalar_one())
        changed_us = max(now_us, before_us + 1)
        connection.execute(sa.update(table).where(*mine).values(changed_us=changed_us))
        return before_us, changed_us

    def save_of_all(
        self, connection: sa.Connection, settings: CatalogueSettings, created_us: int, changed_us: int
    ) -> None:
        """Write what holds for all event types."""
        rows.upsert(connection, table, [self._row("", settings, _Content(), created_us, changed_us)])

    def find(self, connection: sa.Connection, name: str) -> EventType | None:
        query = sa.select(table).where(self._mine, table.c.name == name, table.c.name != "")
        row = connection.execute(query).one_or_none()
        if row is None:
            return None
        content = _content(row.content)
        head = msgspec.structs.asdict(_head(row))
        return EventType(**head, schemas=content.schemas, example=content.example)

    def save(self, connection: sa.Connection, it: EventType) -> None:
        """Write an event type, new or changed."""
        body = _Body(it.description, it.versions, it.checked, it.archived)
        content = _Content(dict(it.schemas), it.example)
        rows.upsert(connection, table, [self._row(it.name, body, content, it.created_us, it.changed_us)])

    def delete(self, connection: sa.Connection, name: str) -> bool:
        """Delete an event type; return whether it was there."""
        where = (self._mine, table.c.name == name, table.c.name != "")
        return connection.execute(sa.delete(table).where(*where)).rowcount == 1

    def count(self, connection: sa.Connection) -> int:
        query = sa.select(sa.func.count()).select_from(table).where(self._mine, table.c.name != "")
        return int(connection.execute(query).scalar_one())

    def all(self, connection: sa.Connection) -> list[Head]:
        """Return all event types by name."""
        query = sa.select(*_HEAD).where(self._mine, table.c.name != "").order_by(table.c.name)
        return [_head(row) for row in connection.execute(query)]

    def page(self, connection: sa.Connection, limit: int, cursor: str) -> Page[Head]:
        """Return event types by name. Raises `InvalidCursor`."""
        query = sa.select(*_HEAD).where(self._mine, table.c.name != "")
        return cursors.read(connection, query, [table.c.name], _head, limit, cursor)

    def _row(self, name: str, body: Any, content: _Content, created_us: int, changed_us: int) -> dict[str, Any]:
        return {
            "environment": self._environment,
            "name": name,
            "body": _encode(body).decode(),
            "content": _encode(content).decode(),
            "created_us": created_us,
            "changed_us": changed_us,
        }


def _head(row: sa.Row[tuple[object, ...]]) -> Head:
    body = msgspec.structs.asdict(_body(row.body))
    return Head(name=row.name, created_us=row.created_us, changed_us=row.changed_us, **body)

"""Reading and writing topics as rows of the catalog.

EMQ writes no field or option that some host cannot read (`emq.database.levels`). If a row has a field, an option or a
value that this version does not understand all the same, EMQ leaves the row alone, since what it does not understand
may be a limit. It says so once, and goes on with the other topics.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from emq import errors
from emq.database import levels, statements, tables
from emq.topics import changing
from emq.topics.model import Topic

log = logging.getLogger(__name__)

_table = tables.topics
_decoder = msgspec.json.Decoder(Topic)

AT_ONCE = 500
"""Most names in one statement."""

SAID = 1_000
"""Most unreadable rows remembered as logged."""

_said: dict[tuple[str, str], None] = {}

DAMAGED = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""The errors of reading a row that holds no valid topic."""


class TopicRows:
    """The rows of one environment's topics.

    Args:
        place: the store and the database, for the error for an unknown topic; may be empty.
    """

    def __init__(self, environment: str, place: str) -> None:
        self._environment = environment
        self._place = place

    def live(self) -> sa.ColumnElement[bool]:
        """Return the condition for rows of topics that exist."""
        return sa.and_(_table.c.environment == self._environment, _table.c.live == 1)

    def bodies(self, connection: sa.Connection, names: Iterable[str]) -> dict[str, str]:
        """Return the rows' texts by name, of those among the names that exist."""
        return {str(name): str(body) for name, body in self._named(connection, "topics_find", names)}

    def buried(self, connection: sa.Connection, names: Iterable[str]) -> dict[str, float]:
        """Return the times of deletion by name, of those among the names that were deleted."""
        return {str(name): deleted_s(body) for name, body in self._named(connection, "topics_buried", names)}

    def body(self, connection: sa.Connection, name: str) -> str:
        """Return the text of a row.

        Raises:
            UnknownTopic: there is no such topic; the text names topics that are spelt alike.
        """
        found = self.bodies(connection, [name])
        if name in found:
            return found[name]
        # Comparing names is slow, so compare only names with the same first letter, and at most 2,000 of them.
        names = sa.select(_table.c.name).where(self.live(), _table.c.name.startswith(name[:1], autoescape=True))
        alike = changing.alike(name, connection.execute(names.limit(2000)).scalars())
        raise errors.UnknownTopic(
            f"there is no topic {name!r} in {self._environment}{self._place}{alike or '; create it first'}"
        )

    def budgets_above(self, connection: sa.Connection, topics: Sequence[Topic]) -> dict[str, str]:
        """Return the rows of the budgets above topics, of those that exist, also of budgets above these."""
        asked, found = {topic.name for topic in topics}, dict[str, str]()
        below: Iterable[Topic] = topics
        while wanted := {name for topic in below if (name := topic.options.budget) is not None} - asked:
            asked |= wanted
            rows = self.bodies(connection, wanted)
            found |= rows
            below = decoded(rows).values()
        return found

    def naming(self, connection: sa.Connection, budget: str) -> list[str]:
        """Return the names of the topics that name a topic as their budget, in order; reads many rows."""
        query = sa.select(_table.c.name, _table.c.body).where(self.live(), _table.c.body.contains('"budget"'))
        rows = connection.execute(query.order_by(_table.c.name))
        return [str(name) for name, body in rows if _options(body).get("budget") == budget]

    def topic(self, connection: sa.Connection, name: str) -> Topic:
        """Return a topic. Raises as `body` and `decode`."""
        return decode(name, self.body(connection, name))

    def save(self, connection: sa.Connection, version: int, topics: Iterable[Topic]) -> None:
        """Write topics.

        Raises:
            InvalidTopic: a topic has what some hosts cannot read; see `encode`.
            HostConflict: this version cannot read all that others write.
        """
        level = levels.current(connection, self._environment)
        rows = [(topic.name, encode(topic, level)) for topic in topics]
        if rows:
            text = msgspec.json.encode(rows).decode()
            values = {"environment": self._environment, "version": version, "rows": text}
            connection.execute(statements.catalog(connection, "topics_save"), values)

    def bury(self, connection: sa.Connection, version: int, names: Sequence[str], now_s: float) -> None:
        """Mark topics' rows as deleted at `now_s`, and drop the topics' passages."""
        for start in range(0, len(names), AT_ONCE):
            self._bury(connection, version, names[start : start + AT_ONCE], now_s)

    def _bury(self, connection: sa.Connection, version: int, names: Sequence[str], now_s: float) -> None:
        rows = sa.update(_table).where(self.live(), _table.c.name.in_(names))
        connection.execute(rows.values(body=grave(now_s), live=0, version=version, deleted_at=version))
        passed = tables.passages
        here = passed.c.environment == self._environment
        of_stores = passed.c.environment.startswith(f"{self._environment}@")
        connection.execute(sa.delete(passed).where(here | of_stores, passed.c.topic.in_(names)))

    def _named(self, connection: sa.Connection, statement: str, names: Iterable[str]) -> Iterable[Any]:
        values = {"environment": self._environment, "names": msgspec.json.encode([*names]).decode()}
        return connection.execute(statements.catalog(connection, statement), values)


def decode(name: str, body: str) -> Topic:
    """Return the topic of a row.

    Raises:
        InvalidTopic: this version cannot read the row.
    """
    try:
        topic = _decoder.decode(body)
        if topic.name != name or not 0 < topic.active_groups <= topic.groups:
            raise ValueError("its fields contradict each other")
        return topic
    except DAMAGED as exc:
        raise errors.InvalidTopic(
            f"topic {name!r} cannot be read from the catalog ({exc}); a newer version of EMQ may have written it: "
            "upgrade this process, or repair the row"
        ) from exc


def decoded(bodies: Mapping[str, str]) -> dict[str, Topic]:
    """Return the topics of rows by name. Raises as `decode`."""
    return {name: decode(name, body) for name, body in bodies.items()}


def readable(name: str, body: str) -> Topic | None:
    """Return the topic of a row; None, and an error in the log, if this version cannot read the row."""
    try:
        return decode(name, body)
    except errors.InvalidTopic as exc:
        if (name, body) not in _said:
            while len(_said) >= SAID:
                del _said[next(iter(_said))]
            _said[name, body] = None
            log.error("%s; it is left alone", exc)  # noqa: TRY400
        return None


def encode(topic: Topic, level: int) -> str:
    """Return the row of a topic, in a form that hosts of this feature level can read.

    Raises:
        InvalidTopic: the topic has a field or an option that such hosts do not know.
    """
    plain: dict[str, Any] = msgspec.to_builtins(topic)
    for field, default in (("divisions", []), ("layout", 0), ("earlier", []), ("shared_s", 0)):
        if not plain.get(field, default):
            plain.pop(field, None)
    for field in [field for field, since in levels.SINCE.items() if since > level]:
        place, settings, defaults = (
            (plain, topic, _DEFAULT) if field in plain else (plain["options"], topic.options, _DEFAULT.options)
        )
        if place.pop(field, None) is not None and getattr(settings, field) != getattr(defaults, field):
            raise errors.InvalidTopic(
                f"topic {topic.name!r}: {field} needs feature level {levels.SINCE[field]}, and the environment is at "
                f"level {level}: upgrade all hosts, then run: emq upgrade --level {levels.SINCE[field]}"
            )
    return msgspec.json.encode(plain).decode()


_DEFAULT = Topic("default", 1.0)


def grave(deleted_s: float) -> str:
    """Return the row of a deleted topic, which holds the time of the deletion in seconds of the environment's time."""
    return msgspec.json.encode({"deleted_s": deleted_s}).decode()


def deleted_s(body: str) -> float:
    """Return the time of deletion in a row made by `grave`; 0 if an earlier version has written the row."""
    found = _read(body).get("deleted_s", 0.0)
    return float(found) if isinstance(found, int | float) else 0.0


def _options(body: str) -> dict[str, Any]:
    options = _read(body).get("options")
    return options if isinstance(options, dict) else {}


def _read(body: str) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(body) if body else {}
    except DAMAGED:
        return {}
    return row if isinstance(row, dict) else {}

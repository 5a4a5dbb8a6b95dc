"""The rows of families, one for each; they are changed in the transactions of the catalog."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from emq.database import levels, tables
from emq.runtime import errors
from emq.topics import families, row_codec
from emq.topics.families import Family
from emq.topics.model import Topic

_table = tables.families

_decoder = msgspec.json.Decoder(Family)


class Stored(NamedTuple):
    """A family, and the number of its topics that are awake now."""

    family: Family
    live: int


class AllFamilies(Mapping[str, Stored]):
    """The families of an environment by name. One that this version cannot read raises `InvalidTopic` when it is used.

    So such a family holds up nobody who needs another one, and a look at one costs no reading of all.
    """

    def __init__(self, rows: Iterable[tuple[str, str, int]]) -> None:
        self._rows = {name: (body, live) for name, body, live in rows}
        self._read: dict[str, Stored] = {}

    def __getitem__(self, name: str) -> Stored:
        if name not in self._read:
            body, live = self._rows[name]
            self._read[name] = Stored(_decoded(name, body), live)
        return self._read[name]

    def body(self, name: str) -> str:
        """Return the row of a family as it is."""
        return self._rows[name][0]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class FamilyRows:
    """The rows of one environment's families, within a transaction."""

    def __init__(self, connection: sa.Connection, environment: str) -> None:
        self._connection = connection
        self._environment = environment

    def all(self) -> AllFamilies:
        """Return the families by name, in the order of their names."""
        query = sa.select(_table.c.name, _table.c.body, _table.c.live).where(self._here()).order_by(_table.c.name)
        return AllFamilies((name, body, live) for name, body, live in self._connection.execute(query))

    def buckets(self) -> dict[str, int]:
        """Return the numbers of buckets of the families, without those that this version cannot read."""
        found = self.all()
        return {name: n for name in found if (n := _buckets(found.body(name))) is not None}

    def get(self, name: str) -> Stored:
        """Return a family.

        Raises:
            UnknownTopic: there is no such family.
        """
        families.of_prefix(name)
        query = sa.select(_table.c.body, _table.c.live).where(self._here(), _table.c.name == name)
        if (row := self._connection.execute(query).first()) is None:
            raise errors.UnknownTopic(
                f"there is no family {name!r} in {self._environment}; create it first: emq family create '{name}'"
            )
        return Stored(_decoded(name, row.body), row.live)

    def save(self, family: Family, is_new: bool) -> None:
        """Write a family; one that is new has no topics yet."""
        level = levels.current(self._connection, self._environment)
        row = {"topic": msgspec.Raw(row_codec.encode(family.topic, level).encode()), "bounds": family.bounds}
        body = msgspec.json.encode(row).decode()
        if is_new:
            values = {"environment": self._environment, "name": family.name, "body": body, "live": 0}
            self._connection.execute(sa.insert(_table).values(values))
        else:
            self._connection.execute(sa.update(_table).where(self._named(family.name)).values(body=body))

    def count(self, topics: Iterable[Topic], sign: int) -> None:
        """Note that families have more topics that are awake (`sign` 1), or fewer (-1)."""
        for name, number in Counter(topic.family for topic in topics if topic.family).items():
            more = {"live": _table.c.live + sign * number}
            self._connection.execute(sa.update(_table).where(self._named(name)).values(more))

    def delete(self, name: str) -> None:
        self._connection.execute(sa.delete(_table).where(self._named(name)))

    def _here(self) -> sa.ColumnElement[bool]:
        return _table.c.environment == self._environment

    def _named(self, name: str) -> sa.ColumnElement[bool]:
        return sa.and_(self._here(), _table.c.name == name)


@functools.lru_cache(1_000)
def _buckets(body: str) -> int | None:
    """Return a family's number of buckets. Cached, since hosts ask at each change of the catalog."""
    try:
        return _decoder.decode(body).topic.options.buckets
    except row_codec.DAMAGED:
        return None


def _decoded(name: str, body: str) -> Family:
    try:
        return _decoder.decode(body)
    except row_codec.DAMAGED as exc:
        raise errors.InvalidTopic(
            f"family {name!r} cannot be read from the catalog ({exc}); a newer version of EMQ may have written it: "
            "upgrade this process, or repair the row"
        ) from exc

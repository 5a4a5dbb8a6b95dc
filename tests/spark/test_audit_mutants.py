"""Hundreds of trails with one row changed each, in one audit: most changes are found.

Each story is told in a topic of its own. A mutant is a lawful story in which one operator has changed one row; its
segments are written as a host writes them, with checksums. The store is as the unchanged story leaves it. A change that
is not found says either that the changed story is lawful as well, or what the audit does not see.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from test_audit_hostile import topic
from worked_off import Store

from emq.trail import events
from emq_spark.audit.offset_audit import AuditOptions, audit
from support.hostile import border_lawful, lawful
from support.hostile.faults import Planter
from support.hostile.told import Row, Told

EACH = 40
"""Mutants of each operator, chosen by a seed from all that there are."""

LAWFUL = dict((*lawful.LAWFUL, *border_lawful.BORDER_LAWFUL))

DELIVERY = (events.STARTED, events.SETTLED)


class Operator(NamedTuple):
    """Attributes:
    of: whether it may change a row.
    change: returns the rows in place of the row.
    least: least share of its mutants that the audit must find.
    """

    of: Callable[[Row], bool]
    change: Callable[[Row], list[Row]]
    least: float


def _is(*names: str) -> Callable[[Row], bool]:
    return lambda row: row["event"] in names


def _with(**fields: Callable[[Row], object]) -> Callable[[Row], list[Row]]:
    return lambda row: [{**row, **{name: value(row) for name, value in fields.items()}}]


def _later(row: Row) -> Row:
    return {**row, "time_us": row["time_us"] + 1_000}


OPERATORS: dict[str, Operator] = {
    "no-start": Operator(_is(events.STARTED), lambda row: [], 0.9),
    "no-settle": Operator(_is(events.SETTLED), lambda row: [], 0.85),
    "no-retry": Operator(_is(events.RETRIED), lambda row: [], 0.6),
    "no-owner": Operator(_is(events.OWNED), lambda row: [], 0.9),
    "started-twice": Operator(_is(events.STARTED), lambda row: [row, _later(row)], 0.85),
    "settled-twice": Operator(_is(events.SETTLED), lambda row: [row, _later(row)], 1.0),
    "settle-is-death": Operator(
        _is(events.SETTLED), _with(event=lambda _: events.DEAD, reason=lambda _: "handler failed"), 1.0
    ),
    "settle-is-retry": Operator(
        _is(events.SETTLED), _with(event=lambda _: events.RETRIED, due_ms=lambda row: row["time_us"] // 1000), 0.9
    ),
    "another-offset": Operator(
        lambda row: row["event"] == events.STARTED and (row["offset"] or -1) >= 0,
        _with(offset=lambda row: row["offset"] + 1_000),
        1.0,
    ),
    "another-attempt": Operator(_is(*DELIVERY), _with(attempt=lambda row: row["attempt"] + 1), 1.0),
    "another-message": Operator(_is(*DELIVERY), _with(id=lambda _: "a-stranger"), 1.0),
    "another-host": Operator(_is(*DELIVERY), _with(source=lambda _: "bystander"), 1.0),
    "another-epoch": Operator(_is(events.STARTED), _with(epoch=lambda row: row["epoch"] + 7), 1.0),
}


def _name(*parts: object) -> str:
    return ".".join(str(part) for part in parts).replace("_", "-")


def _mutants() -> Iterator[tuple[str, Planter, int]]:
    """Yield operator, story and the number of the row."""
    chance = random.Random(26)
    stories = {plant: Told.of(plant, "any").rows for plant in LAWFUL}
    for name, operator in OPERATORS.items():
        every = [(p, i) for p, rows in stories.items() for i, row in enumerate(rows) if operator.of(row)]
        yield from ((name, plant, i) for plant, i in chance.sample(every, min(EACH, len(every))))


@pytest.fixture(scope="module")
def found(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The promises that the audit found broken, by topic."""
    directory = tmp_path_factory.mktemp("mutants")
    together, store, topics = Told(), Store(), []
    together.idle.add("bystander")
    for name, plant, number in _mutants():
        told = Told.of(plant, _name(name, number, plant.__name__))
        store.add(told.rows, LAWFUL[plant].get("still_queued", []))
        told.rows[number : number + 1] = OPERATORS[name].change(told.rows[number])
        topics.append(topic(plant, told))
        together.rows.extend(told.rows)
        together.idle.update(told.idle)
    together.write(directory / "trail")
    audit(spark, AuditOptions([directory / "trail"], [], topics=topics, store=store.view), directory / "findings")
    broken: dict[str, set[str]] = defaultdict(set)
    for row in pq.read_table(str(directory / "findings")).to_pylist():
        if not row["excused"] and row["topic"] is not None:
            broken[row["topic"]].add(row["promise"])
    return broken


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_row_that_was_changed_is_found(found: dict[str, set[str]], operator: str) -> None:
    mine = [(plant, number) for name, plant, number in _mutants() if name == operator]
    missed = [
        (plant.__name__, number) for plant, number in mine if not found.get(_name(operator, number, plant.__name__))
    ]
    share = (len(mine) - len(missed)) / len(mine)
    assert share >= OPERATORS[operator].least, missed

"""Reads the small tables: catalog, committed offsets, lag, dead letters. Each task reads some of the topics."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from emq import App
from emq.observe.dead_letters import Letter, Selection
from emq.offsets.lag import SlotLag
from emq.topics.model import Topic
from emq_spark.source import options as so
from emq_spark.source import schema as source_schema
from emq_spark.source.connection import ask, connected_app
from emq_spark.source.filters import EPOCH, Range, Wanted
from emq_spark.source.messages import topics_of
from emq_spark.source.spans import CALL_BYTES

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

    Row = dict[str, Any]

PAGE = 1_000
"""Most rows in a record batch; fewer if they have many bytes."""

TOPICS = 500
"""Most topics about which one call asks."""


class TablesReader(DataSourceReader):
    """Reads rows about topics. A partition's value is the names of the topics that one task asks about."""

    def __init__(self, options: so.Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(names) for names in ask(self._options.settings, self._parts)]

    async def _parts(self, app: App) -> list[tuple[str, ...]]:
        found = await topics_of(app, self._options.topics)
        topics = [topic for topic in found if self._wanted.admits(topic=topic.name)]
        asked = [topics[at : at + TOPICS] for at in range(0, len(topics), TOPICS)]
        if self._options.what != so.DEAD:
            return [tuple(topic.name for topic in some) for some in asked]
        dead = [lag for some in asked for lag in await app.admin.slot_lag(some) if lag.dead]
        return shared_by_dead(dead, self._options.messages_per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark makes an empty partition if there are none
            return
        import pyarrow as pa

        schema = source_schema.arrow(self._schema)
        with connected_app(self._options.settings) as (connection, app):
            names = set(partition.value)
            topics = [topic for topic in connection.run(app.catalog.list()) if topic.name in names]
            rows = _ROWS[self._options.what](app, topics, self._wanted.range("died"))
            while page := connection.run(_page(rows)):
                yield pa.RecordBatch.from_pylist([{n: row[n] for n in schema.names} for row in page], schema=schema)


class FilteringTablesReader(TablesReader):
    """With the option `pushdown`: filters on `topic` limit the topics, filters on `died` limit the dead letters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._wanted.take(filters, ("topic",), ("died",) if self._options.what == so.DEAD else ())


def shared_by_dead(topics: Iterable[SlotLag], most: int) -> list[tuple[str, ...]]:
    """Return names of topics in parts of at most `most` dead letters; a topic with more is a part of its own."""
    parts: list[list[str]] = []
    held = most
    for lag in topics:
        if held + lag.dead > most:
            parts.append([])
            held = 0
        parts[-1].append(lag.topic)
        held += lag.dead
    return [tuple(part) for part in parts]


async def _page(rows: AsyncIterator[Row]) -> list[Row]:
    page: list[Row] = []
    held = 0
    async for row in rows:
        page.append(row)
        held += len(row.get("payload") or b"")
        if len(page) == PAGE or held >= CALL_BYTES:
            break
    return page


async def _catalog(_: App, topics: Sequence[Topic], _died: Range) -> AsyncIterator[Row]:
    for topic in topics:
        row = {"topic": topic.name, "kind": topic.kind.value, "state": topic.state.value}
        row |= {name: getattr(topic, name) for name in ("qps", "group_qps", "active_groups", "groups")}
        yield {**row, "priorities": list(topic.priorities), "options": msgspec.json.encode(topic.options).decode()}


async def _offsets(app: App, topics: Sequence[Topic], _died: Range) -> AsyncIterator[Row]:
    for topic in topics:
        if topic.is_sorted:
            continue
        queues = [(group, priority) for group in range(topic.groups) for priority in topic.priorities]
        for (group, priority), (saved, head, tail) in zip(queues, await app.admin.offsets(topic), strict=True):
            yield {
                "topic": topic.name,
                "group": group,
                "priority": priority,
                "epoch": saved.epoch,
                "watermark": saved.watermark,
                "head": head,
                "tail": tail,
                "unfinished": saved.unfinished(head, tail),
                "finished": [{"begin": begin, "end": end} for begin, end in saved.finished],
            }


async def _lag(app: App, topics: Sequence[Topic], _died: Range) -> AsyncIterator[Row]:
    nothing: Row = dict.fromkeys(source_schema.COLUMNS[so.LAG])
    for lag in await app.admin.lag(topics):
        yield {**nothing, **lag._asdict()}
    for waiting in await app.admin.slot_lag(topics):
        yield {**nothing, **waiting._asdict()}


async def _dead(app: App, topics: Sequence[Topic], died: Range) -> AsyncIterator[Row]:
    # Times of death are whole milliseconds, so rounding the bounds up changes nothing.
    selection = Selection(
        since_ms=0 if died.low is None else max(0, -(-died.low // 1000)),
        until_ms=1 << 62 if died.high is None else -(-died.high // 1000),
    )
    for topic in topics:
        async for letter in app.dead_letters(topic.name, selection):
            yield _letter(letter)


def _letter(letter: Letter) -> Row:
    row = {
        name: getattr(letter, name) for name in ("topic", "group", "priority", "id", "payload", "attempts", "reason")
    }
    history = [{"at": _time(at_ms), "reason": reason} for at_ms, reason, _ in letter.history]
    return {**row, "payload": bytes(letter.payload), "died": _time(letter.dead_ms), "history": history}


def _time(ms: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=ms)


_ROWS: dict[str, Callable[[App, Sequence[Topic], Range], AsyncIterator[Row]]] = {
    so.CATALOG: _catalog,
    so.OFFSETS: _offsets,
    so.LAG: _lag,
    so.DEAD: _dead,
}

"""EMQ as a data source of Spark, `format("emq")`.

    import spark
    spark.register(session)
    messages = session.read.format("emq").option("store", "redis://...").option("topics", "shop.*").load()
    messages.where("priority = 'high'").groupBy("topic").count()

Reading (`session.read`), by the option `what`: `messages`, `catalog`, `offsets`, `lag`, `dead`; `session.readStream`
reads messages. Readers look on: they own, claim and arm nothing. Two things Spark leaves to you:

- Name the columns you need with the option `columns`, or with `.schema(...)`: Spark tells a Python source nothing of
  the columns that a query uses.
- With `option("pushdown", True)`, filters on topic, group, priority, offset and published decide what is read. Spark
  (4.3) has one place for the planned read of a `load()`, which the last query with filters fills and every scan looks
  into: a later query without filters, or one that takes the same `load()` twice, misses rows, and a source written in
  Python is not asked again and cannot tell. So give it only where the result of `load()` is used once. Without it,
  Spark filters what has been read, and a data frame may be used as often as you like; it goes on reading what was there
  when it was first used: `load()` again for what has come since.

Writing (`df.write.format("emq").mode("append").save()` and `df.writeStream`): each row is published. See
`spark.source.options` for the options, `spark.source.schema` for the columns, `spark.source.write` for what holds when
a task is tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from emq import errors
from spark.source import options as so
from spark.source import schema as source_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class EMQDataSource(DataSource):
    """Checks the options and the columns, and hands over to the reader or writer asked for.

    Every method raises `InvalidSettings` for an option or column that cannot be; the text names those that can.
    """

    @classmethod
    def name(cls) -> str:
        return "emq"

    def schema(self) -> str:
        return source_schema.chosen(so.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark.source.messages import FilteringMessagesReader, MessagesReader
        from spark.source.tables import FilteringTablesReader, TablesReader

        options = so.parse(self.options, so.READ)
        source_schema.check_read(options.what, schema)
        if options.what == so.MESSAGES:
            return (FilteringMessagesReader if options.pushdown else MessagesReader)(options, schema)
        return (FilteringTablesReader if options.pushdown else TablesReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark.source.stream import MessagesStream

        options = so.parse(self.options, so.STREAM)
        if options.what != so.MESSAGES:
            raise errors.InvalidSettings(
                f"option what {options.what!r} cannot be streamed; messages can, read the others"
            )
        source_schema.check_read(options.what, schema)
        return MessagesStream(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from spark.source.write import BatchWriter

        options = so.parse(self.options, so.WRITE)
        if overwrite:
            raise errors.InvalidSettings("mode 'overwrite' is not for queues, which are appended to; use 'append'")
        source_schema.check_write(schema, options.topic)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from spark.source.write import StreamWriter

        options = so.parse(self.options, so.STREAM_WRITE)
        source_schema.check_write(schema, options.topic)
        return StreamWriter(options)

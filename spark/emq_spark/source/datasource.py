"""EMQ as a data source of Spark, `format("emq")`.

    import spark
    spark.register(session)
    messages = session.read.format("emq").option("store", "redis://...").option("topics", "shop.*").load()
    messages.where("priority = 'high'").groupBy("topic").count()

The option `what` chooses what `session.read` reads: `messages`, `catalog`, `offsets`, `lag` or `dead`.
`session.readStream` reads messages. Readers only observe: they own, claim and arm nothing. Two things are left to you:

- Name the columns that you need with the option `columns`, or with `.schema(...)`, because Spark does not tell a Python
  source which columns a query uses.
- With `option("pushdown", True)`, filters on topic, group, priority, offset and published limit the read. Use this
  option only where the result of `load()` is used once. Spark (4.3) keeps one planned read for each `load()`: the last
  query with filters sets the plan, and every scan uses it. So a later query without filters, or a query that uses the
  same `load()` twice, misses rows, and a source in Python cannot notice. Without the option, Spark filters the rows
  after reading, and you may use a data frame as often as you like. A data frame keeps the bounds of its first use; call
  `load()` again to read newer messages.

`df.write.format("emq").mode("append").save()` and `df.writeStream` publish each row. See `emq_spark.source.options` for
the options, `emq_spark.source.schema` for the columns, and `emq_spark.source.publication` for tasks that are tried
again.
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

from emq.runtime import errors
from emq_spark.source import options as so
from emq_spark.source import schema as source_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class EMQDataSource(DataSource):
    """Checks the options and the columns, and makes the reader or writer.

    Every method raises `InvalidSettings` for an invalid option or column; the text names the valid ones.
    """

    @classmethod
    def name(cls) -> str:
        return "emq"

    def schema(self) -> str:
        return source_schema.chosen(so.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from emq_spark.source.messages import FilteringMessagesReader, MessagesReader
        from emq_spark.source.tables import FilteringTablesReader, TablesReader

        options = so.parse(self.options, so.READ)
        source_schema.check_read(options.what, schema)
        if options.what == so.MESSAGES:
            return (FilteringMessagesReader if options.pushdown else MessagesReader)(options, schema)
        return (FilteringTablesReader if options.pushdown else TablesReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from emq_spark.source.stream import MessagesStream

        options = so.parse(self.options, so.STREAM)
        if options.what != so.MESSAGES:
            raise errors.InvalidSettings(
                f"option what {options.what!r} cannot be streamed; messages can, read the others"
            )
        source_schema.check_read(options.what, schema)
        return MessagesStream(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from emq_spark.source.write import BatchWriter

        options = so.parse(self.options, so.WRITE)
        if overwrite:
            raise errors.InvalidSettings("mode 'overwrite' is not for queues, which are appended to; use 'append'")
        source_schema.check_write(schema, options.topic)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from emq_spark.source.write import StreamWriter

        options = so.parse(self.options, so.STREAM_WRITE)
        source_schema.check_write(schema, options.topic)
        return StreamWriter(options)

"""EMQ on Spark: a data source, a load generator, and an audit that proves that EMQ kept its promises.

    spark.register(session)
    session.read.format("emq").option("store", "redis://...").option("topics", "shop.*").load()

`emq_spark.source.datasource` lists all tables and options. The package needs the extra `spark` and Java 17 or newer.
"""

from emq_spark.source.registration import register

__all__ = ["register"]

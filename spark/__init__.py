"""EMQ on Spark: a data source, a load generator, and the audit that proves the promises.

    spark.register(session)
    session.read.format("emq").option("store", "redis://...").option("topics", "shop.*").load()

See `spark.source.datasource` for what can be read and written. Needs the extra `spark` and Java 17 or newer.
"""

from spark.source.registration import register

__all__ = ["register"]

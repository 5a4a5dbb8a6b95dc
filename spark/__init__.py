"""EMQ on Spark: a data source, a load generator, and the audit that proves the promises.

    spark.register(session)
    session.read.format("emq").option("store", "redis://...").option("topics", "shop.*").load()

See `spark.source.datasource` for what can be read and written. Needs the extra `spark` and Java 17 or newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

REDACTED = "spark.sql.redaction.options.regex"

SECRETS = "(?i)^(store|database)$"
"""Options that may hold a password."""


def register(session: SparkSession) -> None:
    """Make `format("emq")` known to a session, and let it hand filters down to the source. Safe to repeat.

    Plans, and so Spark's web interface and event log, show the options of a write: those that may hold a password are
    added to what Spark hides.

    The workers must be able to import `spark` and `emq`: install the package there, or submit it with --py-files
    (see `spark.bundle`).

    Raises:
        EMQError: PySpark or pyarrow is missing; install what the text names.
    """
    from spark.session import require_packages

    require_packages()
    from spark.source.datasource import EMQDataSource

    session.dataSource.register(EMQDataSource)
    # Spark refuses sources that take filters unless this is set.
    session.conf.set(PUSHDOWN, "true")
    hidden = session.conf.get(REDACTED) or ""
    if SECRETS not in hidden:
        session.conf.set(REDACTED, f"{hidden}|{SECRETS}" if hidden else SECRETS)

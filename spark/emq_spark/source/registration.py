"""Registers `format("emq")` in a Spark session."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from emq.runtime import errors, extras

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("pyspark", "pyarrow")

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

REDACTED = "spark.sql.redaction.options.regex"

SECRETS = "(?i)^(store|database)$"
"""Options that may hold a password."""


def register(session: SparkSession) -> None:
    """Register `format("emq")` in a session, and let the session push filters down to the source. Safe to repeat.

    Plans show the options of a write, and so do Spark's web interface and event log. This function adds the options
    that may hold a password to those that Spark hides.

    The workers must be able to import `spark` and `emq`: install the package there, or submit it with --py-files
    (see `emq_spark.bundle`).

    Raises:
        EMQError: PySpark or pyarrow is missing; install what the text names.
    """
    require_packages()
    from emq_spark.source.datasource import EMQDataSource

    session.dataSource.register(EMQDataSource)
    # Without this setting, Spark refuses sources that take filters.
    session.conf.set(PUSHDOWN, "true")
    hidden = session.conf.get(REDACTED) or ""
    if SECRETS not in hidden:
        session.conf.set(REDACTED, f"{hidden}|{SECRETS}" if hidden else SECRETS)


def require_packages() -> None:
    """Return if the packages are installed that EMQ on Spark needs, whether Java runs here or on another machine.

    Raises:
        InvalidSettings: a package is missing; install what the text names.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise errors.InvalidSettings(f"EMQ on Spark needs {' and '.join(missing)}; {extras.remedy('spark')}")

"""A Spark for one audit on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql import SparkSession

from spark import session


@contextlib.contextmanager
def spark(cores: int, memory: str) -> Iterator[SparkSession]:
    """The session that runs in this process, or one that is ended afterwards.

    Raises:
        EMQError: PySpark or Java is missing; the text has the remedy.
    """
    with session.borrowed("emq audit", cores, memory) as made:
        yield made

"""The audit proves what hosts wrote in a lively minute, and finds the faults that are planted in it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from worked_off import Store

from emq_spark.audit.offset_audit import Audit, AuditOptions, audit
from support import lively_trail
from support.hostile import in_lively
from support.hostile.in_lively import PLANTS, Plant
from support.virtual import run


class Audits(NamedTuple):
    """Attributes:
    clean: audit of the trail as it is.
    planted: by the plant, the message that it is about; None if it is about a group.
    found: promise and message of what an audit found in the trail with all plants.
    """

    clean: Audit
    planted: dict[Plant, str | None]
    found: set[tuple[str, str | None]]


@pytest.fixture(scope="module")
def audits(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Audits:
    directory = tmp_path_factory.mktemp("lively")
    topics = run(lively_trail.write(directory / "clean"))
    rows = in_lively.rows_of(directory / "clean")
    store = Store()
    store.add(rows, [])
    facts: dict[str, Any] = {"topics": topics, "earlier": [lively_trail.grown(topics)], "store": store.view}
    clean = audit(spark, AuditOptions([directory / "clean"], **facts))
    planted = {plant: plant(rows) for plant, _ in PLANTS}
    in_lively.write_rows(rows, directory / "faulty")
    audit(spark, AuditOptions([directory / "faulty"], **facts), directory / "findings")
    found = pq.read_table(str(directory / "findings")).to_pylist()
    return Audits(clean, planted, {(row["promise"], row["id"]) for row in found if not row["excused"]})


def test_a_lively_minute_is_proved(audits: Audits) -> None:
    assert audits.clean.ok, (audits.clean.kinds, audits.clean.flaws)


@pytest.mark.parametrize(("plant", "letter"), PLANTS, ids=[plant.__name__ for plant, _ in PLANTS])
def test_a_fault_in_a_lively_minute_is_found(audits: Audits, plant: Plant, letter: str) -> None:
    assert (letter, audits.planted[plant]) in audits.found, sorted(audits.found, key=str)

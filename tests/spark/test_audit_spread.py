"""What the driver and one worker hold does not grow with the groups and messages of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin

from bench.spark import synthetic
from bench.spark.synthetic import Shape
from emq_spark.audit.offset_audit import AuditOptions, audit


def _audit(spark: SparkSession, directory: Path, shape: Shape) -> None:
    ledgers, trail = synthetic.write(directory, shape)
    result = audit(spark, AuditOptions([trail], [ledgers], topics=shape.catalog()))
    assert result.ok, result.kinds


def test_the_driver_gets_no_more_rows_where_more_groups_have_owners_and_move(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[int] = []
    collect = DataFrame.collect

    def counted(frame: DataFrame) -> list[Any]:
        rows = collect(frame)
        got.append(len(rows))
        return rows

    monkeypatch.setattr(DataFrame, "collect", counted)
    _audit(spark, tmp_path / "few", Shape(2, 4))
    few, got[:] = list(got), []
    _audit(spark, tmp_path / "many", Shape(2, 4, idle=40))
    assert got == few


def test_where_keys_wait_no_python_worker_gets_a_whole_group(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(PandasGroupedOpsMixin, "applyInArrow", lambda *_: asked.append(1))
    _audit(spark, tmp_path, Shape(2, 4, keys_wait=True))
    assert asked == []

"""The data source with `spark-submit --py-files`, where workers have EMQ from that file alone."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest
from emq_data import Data

from emq.runtime import errors
from emq_spark import bundle, session

SCRIPT = """
import sys
from pyspark.sql import SparkSession
import emq_spark, emq

def with_place(batches):
    import pyarrow as pa
    import emq, emq_spark
    for batch in batches:
        payloads = [p + f" {emq_spark.__file__} {emq.__file__}".encode() for p in batch.column("payload").to_pylist()]
        yield pa.RecordBatch.from_pydict({"payload": payloads})

session = SparkSession.builder.getOrCreate()
emq_spark.register(session)
where = {"store": sys.argv[1], "database": sys.argv[1]}
read = session.read.format("emq").options(**where, topics="t", columns="payload").load()
read.mapInArrow(with_place, "payload binary").write.format("emq").mode("append").options(**where, topic="u").save()
print("DRIVER", emq_spark.__file__, emq.__file__)
"""


@pytest.mark.xdist_group("spark")  # a second Spark beside the session of other tests would be too much for the machine
def test_a_bundle_serves_driver_and_workers_that_have_no_emq_of_their_own(data: Data, tmp_path: Path) -> None:
    try:
        session.require()
    except errors.EMQError as exc:
        pytest.skip(str(exc))
    for topic in ("t", "u"):
        data.create(topic)
    data.publish("t", range(100))
    file, script = tmp_path / "emq.zip", tmp_path / "script.py"
    assert bundle.main([str(file)]) == 0
    script.write_text(SCRIPT)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[2]", "--driver-memory", "1g", "--py-files", str(file)]
    command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    for name, value in session.QUICK.items():
        command += ["--conf", f"{name.replace('_', '.')}={value}"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [*command, str(script), data.options["store"]],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("DRIVER")]
    messages = [m.payload.decode().split() for m in data.messages("u")]
    assert sorted(int(number) for number, *_ in messages) == [*range(100)]
    assert all("emq.zip/" in place for _, *places in [line.split(), *messages] for place in places)


def test_a_bundle_holds_what_is_read_at_run_time_and_the_entry_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bundle.main([str(tmp_path / "emq.zip")]) == 0
    names = set(zipfile.ZipFile(tmp_path / "emq.zip").namelist())
    assert {
        "emq_spark/source/datasource.py",
        "emq_stores/redis/lua/read.lua",
        "emq_cli/__init__.py",
        "emq_proof/histories.py",
        "emq_trace/lookup.py",
    } <= names
    assert "emq_spark/audit/templates/report.html" in names
    assert any(name.endswith(".sql") for name in names)
    assert any(name.endswith("dist-info/entry_points.txt") for name in names)
    assert not any("__pycache__" in name for name in names)
    assert bundle.main([]) == 2
    assert bundle.main([str(tmp_path / "no" / "emq.zip")]) == 1
    assert "cannot write" in capsys.readouterr().err

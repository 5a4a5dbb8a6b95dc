"""`emq audit`: one command, one verdict, and an exit status for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from bench.spark import synthetic
from emq.topics import catalog_file
from emq_cli.commands import app
from emq_spark import session

SHAPE = synthetic.Shape(topics=1, seconds=4)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    synthetic.write(tmp_path, SHAPE)
    (tmp_path / "topics.toml").write_text(catalog_file.dump(SHAPE.catalog(), "toml"))
    return tmp_path


def emq(line: str) -> Result:
    return CliRunner().invoke(app, line.split())


def test_one_command_proves_a_clean_run_and_draws_it(spark: SparkSession, made: Path) -> None:
    """Also where the directories have names that mean something to a shell."""
    for name in ("trail", "ledger"):
        (made / name).rename(made / f"{name}-[1]{{a,b}}*?")
    result = emq("audit trail-[1]{a,b}*? --ledger ledger-[1]{a,b}*? --topics topics.toml --report out.html --json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["ok"] is True
    assert told["counts"]["published"] == SHAPE.messages
    assert "Every promise was kept" in (made / "out.html").read_text()


def test_a_void_proof_is_told_with_its_reasons_and_exit_status_3(spark: SparkSession, made: Path) -> None:
    """One segment is cut off, and in another the data behind a good footer is damaged."""
    cut = sorted((made / "trail").glob("host-0-*.parquet"))[1]
    cut.write_bytes(cut.read_bytes()[:-100])
    damaged = max((made / "trail").glob("host-1-*.parquet"), key=lambda path: path.stat().st_size)
    whole = bytearray(damaged.read_bytes())
    whole[4:2000] = bytes(1996)
    damaged.write_bytes(whole)
    result = emq("audit trail --ledger ledger")
    assert result.exit_code == 3, result.output
    text = " ".join(result.stdout.split())
    for segment in (cut, damaged):
        assert f"void: {segment.name}: truncated or damaged" in text
    assert "not judged: quotas are not known" in text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("audit nowhere", "there is no trail directory '{here}/nowhere'"),
        ("audit trail --topics none.toml", "topics 'none.toml' cannot be read"),
        ("audit trail --report no/out.html", "report 'no/out.html' cannot be written"),
        ("audit trail --findings .", "findings '.' holds "),
    ],
)
def test_wrong_options_end_in_one_line(spark: SparkSession, made: Path, line: str, text: str) -> None:
    result = emq(line)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"emq: {text.format(here=made)}")
    assert result.stderr.count("\n") == 1


def test_a_span_that_is_none_is_wrong_usage(made: Path) -> None:
    result = emq("audit trail --max-skew soon")
    assert result.exit_code == 2
    assert "'soon' is not a duration" in result.stderr


def test_without_java_one_line_says_what_to_install(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_java", lambda: None)
    result = emq("audit trail")
    assert result.exit_code == 2
    assert "Java 17 or newer" in result.stderr
    assert result.stderr.count("\n") == 1

"""A store with a database of its own, for each test that asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from emq_data import Data

if TYPE_CHECKING:
    from load_rig import Rig
    from replaced_store import Replaced


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """In an SQLite file, of this test alone."""
    url = f"sqlite:///{tmp_path}/emq.db"
    return Data(url, url)


@pytest.fixture
def redis_data(redis_url: str, tmp_path: Path) -> Data:
    """On Valkey or Redis, shared with other tests: use topics of your own."""
    return Data(redis_url, f"sqlite:///{tmp_path}/emq.db")


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replaced]:
    """A store that a test may bring back empty, or as it was before."""
    import replaced_store

    yield from {"sqlite": replaced_store.on_sqlite, "redis": replaced_store.on_redis}[request.param](tmp_path)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads wait for nothing, and have small segments and slices."""
    monkeypatch.setattr("emq_spark.load.task.FOUND_TAKES_S", 0.0)
    monkeypatch.setattr("emq_spark.load.task.SEGMENT_ROWS", (50, 50))
    monkeypatch.setattr("emq_spark.load.sender.LOOK_AFTER_S", (0.0,))
    monkeypatch.setattr("emq_spark.load.sender.WAIT_S", 0.0)
    monkeypatch.setattr("emq_spark.load.synthetic.MAX_STEP_S", 0.2)


@pytest.fixture
def rig(data: Data, tmp_path: Path, hasty: None) -> Rig:
    """A load that waits for nothing, with small segments and slices."""
    from load_rig import Rig

    return Rig(data, tmp_path / "ledger")

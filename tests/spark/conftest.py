"""A store with a database of its own, for each test that asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from emq_data import Data


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """In an SQLite file, of this test alone."""
    url = f"sqlite:///{tmp_path}/emq.db"
    return Data(url, url)


@pytest.fixture
def redis_data(redis_url: str, tmp_path: Path) -> Data:
    """On Valkey or Redis, shared with other tests: use topics of your own."""
    return Data(redis_url, f"sqlite:///{tmp_path}/emq.db")

"""Names that no topic can have, and no database can hold: the catalog knows none of them, on each database."""

from __future__ import annotations

import pytest

from emq.database import Database
from emq.runtime import errors
from emq.topics.catalog import Catalog
from emq.topics.model import Topic, TopicOptions

IMPOSSIBLE = ["a\0b", "\0", "a\ud800"]


@pytest.fixture
async def catalog(db: Database) -> Catalog:
    made = Catalog(db, "online", None)
    await made.create(Topic("a", 10.0))
    return made


@pytest.mark.parametrize("name", IMPOSSIBLE)
async def test_a_name_that_no_database_can_hold_is_unknown_or_invalid(catalog: Catalog, name: str) -> None:
    refused = pytest.raises((errors.UnknownTopic, errors.InvalidTopic))
    with refused:
        await catalog.get(name)
    with refused:
        await catalog.matching(name)
    with refused:
        await catalog.update(name, qps=5.0)
    with refused:
        await catalog.delete("a", name)
    with refused:
        await catalog.create(Topic("below", 5.0, options=TopicOptions(budget=name)))
    assert [*await catalog.some(["a", name])] == ["a"], "a name of another caller fails nobody's reading"
    assert not await catalog.beginning(name, 10)
    assert await catalog.names() == ["a"]

"""The parts of the URL of a store on Redis: what each wrong one is told."""

from __future__ import annotations

import pytest

from emq.runtime import errors
from emq_stores.redis.address import parsed


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://:hush@host/orders", "a database has a number, such as /1, not 'orders'"),
        ("redis://:hush@host/0/1", "not '0/1'"),
        ("redis://:hush@host/-1", "not '-1'"),
        ("redis+sentinel://:hush@host/mymaster/orders", "not 'orders'"),
        ("redis+sentinel://:hush@host", "/NAME"),
        ("redis+cluster://:hush@host/1", "a cluster has database 0 only"),
        ("redis://:hush@a,b", "one server only"),
        ("redis+servers://:hush@a,", "a comma has no server next to it"),
        ("redis://:hush@host:port", "is not HOST:PORT"),
        ("redis+cluster://:hush@host?shards=0", "shards=0 must be from 1 to 4096"),
        ("redis+cluster://:hush@host?shards=many", "shards must be a number, not 'many'"),
    ],
)
def test_a_wrong_part_is_named_and_no_password_is(url: str, says: str) -> None:
    with pytest.raises(errors.InvalidSettings) as caught:
        parsed(url)
    assert says in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "database"),
    [("redis://host", None), ("redis://host/", None), ("redis://host/3", 3), ("rediss://host/0", 0)],
)
def test_the_database_of_a_server(url: str, database: int | None) -> None:
    address = parsed(url)
    assert address.options(*address.hosts[0]).get("db") == database


def test_a_sentinel_url_names_the_master_and_may_name_a_database() -> None:
    address = parsed("redis+sentinel://a,b:5000/mymaster/2")
    assert (address.master_name, address.hosts) == ("mymaster", (("a", 26_379), ("b", 5000)))
    assert address.options("c", 6379)["db"] == 2

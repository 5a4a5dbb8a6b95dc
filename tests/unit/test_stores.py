"""Finding the adapter for a URL, and the memory store's URLs."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import NoReturn

import pytest

from emq.database import urls
from emq.runtime import errors
from emq.runtime.environment import Environment
from emq.runtime.passwords import hide_password
from emq.storage import opening
from emq.storage.log_store import Put, Read, Trim
from emq.storage.opening import open_store
from emq.storage.store import Store
from emq_stores.memory import MemoryStore, World, forget

ONLINE, SANDBOX = Environment


async def no_driver(url: str, environment: Environment) -> NoReturn:
    """A factory whose driver is not installed."""
    raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")


def registered(monkeypatch: pytest.MonkeyPatch, **targets: str) -> None:
    """Let these be all the adapters that are installed."""
    found = {name: EntryPoint(name, target, "emq.stores") for name, target in targets.items()}
    monkeypatch.setattr(opening, "_adapters", lambda: found)


async def test_installed_packages_are_read_once_however_many_stores_a_process_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await (await open_store("memory:", ONLINE)).close()
    monkeypatch.setattr(opening, "entry_points", None)
    await (await open_store("memory:", SANDBOX)).close()


@pytest.mark.parametrize("url", ["", "memory", "kafka://user:hush@host/", "redis+other://:hush@host"])
async def test_a_scheme_without_adapter_is_named_along_with_those_there_are(url: str) -> None:
    with pytest.raises(errors.InvalidSettings, match="memory:, postgresql:, redis:") as caught:
        await open_store(url, ONLINE)
    assert repr(hide_password(url)) in str(caught.value)
    assert "hush" not in str(caught.value)


async def test_a_scheme_with_a_plus_is_a_scheme_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, **{"redis": "no.such.module:f", "redis+cluster": "emq_stores.memory:open_store"})
    with pytest.raises(errors.InvalidSettings, match="memory: for a private store"):
        await open_store("redis+cluster://host/0", ONLINE)


async def test_a_missing_driver_is_answered_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, redis="redis_driver_not_there:open", postgresql=f"{__name__}:no_driver", x="not_there:open")
    for url, remedy in (
        ("redis://host", r"'redis_driver_not_there'; pip install .*'redis>="),
        ("postgresql://host", r"'psycopg'; pip install 'psycopg\[binary\]>="),
        ("x:", "install the package that provides 'not_there'"),
    ):
        with pytest.raises(errors.InvalidSettings, match=remedy):
            await open_store(url, ONLINE)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory:", "memory:"),
        ("sqlite:///queues.db", "sqlite:///queues.db"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user@host", "redis://user@host"),
        ("redis://:hush@host", "redis://:***@host"),
        ("postgresql://user:hush@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user:h@u/s?h@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user@host/db?password=hush&x=1", "postgresql://user@host/db?password=***&x=1"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert hide_password(url) == shown


@pytest.mark.parametrize("scheme", ["redis://", "rediss://", "redis+cluster://", "redis+sentinel://", "postgresql://"])
@pytest.mark.parametrize("password", ["hu/sh", "12/hush", "hu?sh", "hu#sh", "hu@sh", "hu/s@h", "hu%2Fsh", "12?hu@sh"])
async def test_no_error_shows_a_part_of_a_password(
    scheme: str, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody listens at that port; an error tells so, or refuses a password that was not percent-encoded."""
    with pytest.raises(errors.EMQError) as caught:
        await open_store(f"{scheme}user:{password}@127.0.0.1:1/name", ONLINE)
    said = str(caught.value) + caplog.text
    assert "hu" not in said
    assert "sh" not in said
    assert "localhost" not in said, "it was taken for an address"
    assert "127.0.0.1" in said


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/m"]
)
async def test_a_parameter_that_the_driver_does_not_know_is_named(url: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"127\.0\.0\.1:1.*: there is no parameter 'sokcet_timeout'"):
        await open_store(f"{url}?sokcet_timeout=3", ONLINE)


async def test_sentinels_out_of_reach_are_named_without_the_drivers_objects() -> None:
    with pytest.raises(errors.StoreUnavailable) as caught:
        await open_store("redis+sentinel://127.0.0.1:1,127.0.0.1:2/m", ONLINE)
    said = str(caught.value)
    assert "'m'" in said
    assert "127.0.0.1:2" in said
    assert "<" not in said
    assert len(said) < 500


def test_a_database_url_that_cannot_be_read_is_shown() -> None:
    with pytest.raises(
        errors.InvalidSettings, match=r"database URL 'postgresql://u:\*\*\*@host:port/x' cannot be read"
    ):
        urls.parse("postgresql://u:hush@host:port/x")


async def put(store: Store, queue: str = "t/0/high") -> None:
    (answer,) = await store.log.put([Put(queue, [b"a"])])
    assert not isinstance(answer, Exception)


async def tail(store: Store, queue: str = "t/0/high") -> int:
    return (await store.log.bounds([queue]))[0].tail


async def test_a_memory_store_without_a_name_is_private() -> None:
    one, two = await open_store("memory:", ONLINE), await open_store("memory:", ONLINE)
    assert not one.shared
    await put(one)
    assert (await tail(one), await tail(two)) == (2, 1)


async def test_a_named_memory_store_is_shared_until_it_is_forgotten() -> None:
    one = await open_store("memory://here", ONLINE)
    assert one.shared
    await put(one)
    await one.close()
    assert await tail(await open_store("memory://here", ONLINE)) == 2
    assert await tail(await open_store("memory://here", SANDBOX)) == 1
    assert await tail(await open_store("memory://there", ONLINE)) == 1
    forget("here")
    forget("there")
    assert await tail(await open_store("memory://here", ONLINE)) == 1
    forget("here")


async def test_a_memory_store_names_the_cap_it_was_given() -> None:
    assert (await open_store("memory:", ONLINE)).log.max_queue_qps is None
    assert (await open_store("memory:?max_queue_qps=150", ONLINE)).log.max_queue_qps == 150
    store = await open_store("memory://capped?max_queue_qps=12.5", ONLINE)
    forget("capped")
    assert store.log.max_queue_qps == 12.5


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("memory:name", "memory://NAME"),
        ("memory://name/path", "memory://NAME"),
        ("memory:?max_queue_qps=0", "'0' must be a number above 0"),
        ("memory:?max_queue_qps=many", "'many' must be a number above 0"),
        ("memory:?qps=5", "there is max_queue_qps"),
    ],
)
async def test_a_wrong_memory_url_is_answered_with_the_right_one(url: str, remedy: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=remedy):
        await open_store(url, ONLINE)


async def test_a_memory_queue_that_is_trimmed_does_not_grow() -> None:
    world = World()
    store = MemoryStore(world)
    position = 1
    for _ in range(2000):
        await store.log.put([Put("t/0/high", [b"x"] * 10)])
        (batch,) = await store.log.read([Read("t/0/high", position, 9, 1)])
        assert not isinstance(batch, Exception)
        position = batch.next
        await store.log.trim([Trim("t/0/high", position, 1)])
        cells = world.queues["t/0/high"].cells
        assert len(cells) <= 2 * 2010
    assert (await store.log.bounds(["t/0/high"]))[0][:2] == (18001, 20001)


async def test_a_lost_message_is_a_hole_that_reads_pass() -> None:
    store = MemoryStore()
    await store.log.put([Put("t/0/high", [b"1", b"2", b"3", b"4"])])
    assert store.lose("t/0/high", 2)
    assert not store.lose("t/0/high", 2)
    (batch,) = await store.log.read([Read("t/0/high", 1, 2, 1)])
    assert not isinstance(batch, Exception)
    assert (batch.offsets, batch.bodies, batch.next, batch.exhausted) == ([1, 3], [b"1", b"3"], 4, False)
    assert await store.log.get("t/0/high", 2) is None
    full = Put("t/0/high", [b"5"], 3, False, ["t/0/high"])
    assert isinstance((await store.log.put([full]))[0], errors.TopicFull)
    await store.log.trim([Trim("t/0/high", 4, 1)])
    assert not isinstance((await store.log.put([full]))[0], Exception)

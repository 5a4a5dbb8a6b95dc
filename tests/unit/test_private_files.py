"""Files in which EMQ keeps secrets, keys or payloads are for their owner alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from emq import App
from emq.host.host import Host
from emq.runtime import private_files
from support.emq_shell import shell


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir() if path.is_file()}


async def test_the_files_of_a_store_and_its_catalog_are_private(tmp_path: Path) -> None:
    store, database = f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/emq.db"
    async with App(store, database=database) as app:
        await app.create_topic("orders", 5)
        await app.publish("orders", b"{}")

        @app.handler("orders")
        async def handle(_: object) -> None: ...

        async with app.running() as host:
            assert isinstance(host, Host)
            found = modes(tmp_path)
    assert {"store.db", "emq.db", "emq.db-wal", "store.db-wal"} <= found.keys()
    assert set(found.values()) == {0o600}, found


@pytest.mark.services
def test_an_export_with_secrets_is_private_also_over_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emq = shell(tmp_path, monkeypatch)
    emq("topic create shop --qps 1")
    emq("topic set shop push.url=http://shop.example/ push.secret=whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0")
    (tmp_path / "old.toml").write_text("x" * 10_000)
    for name in ("new.toml", "old.toml"):
        emq(f"topic export -o {name} --secrets")
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        assert "whsec_" in (tmp_path / name).read_text()
    assert (tmp_path / "new.toml").read_text() == (tmp_path / "old.toml").read_text()
    emq("topic export -o /dev/null --secrets")


def test_a_file_that_is_there_keeps_its_permissions_and_contents(tmp_path: Path) -> None:
    path = tmp_path / "emq.db"
    path.write_text("data")
    path.chmod(0o640)
    private_files.create(path)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("data", 0o640)

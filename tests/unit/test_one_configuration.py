"""Programs and the command line read one configuration, and errors say which store and database it led to."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

import emq
from emq.runtime import errors, settings
from emq_cli import binding
from emq_cli.session import Session
from support import emq_shell
from support.emq_shell import Shell


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emq_shell.enter(tmp_path, monkeypatch)
    settings._name_unknown.cache_clear()


def test_an_app_reads_what_the_command_line_reads_and_its_arguments_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("emq.toml").write_text('store = "sqlite:///file.db"\nenvironment = "sandbox"\ndrain_s = 3.0\n')
    assert emq.App().settings == settings.load()
    assert (emq.App().settings.store, emq.App().settings.drain_s) == ("sqlite:///file.db", 3.0)
    monkeypatch.setenv("EMQ_STORE", "sqlite:///variable.db")
    assert emq.App().settings.store == "sqlite:///variable.db"
    own = emq.App("sqlite:///own.db", environment="online").settings
    assert (own.store, own.environment, own.drain_s) == ("sqlite:///own.db", "online", 3.0)
    assert emq.App("memory:", options=emq.Settings()).settings == emq.Settings(store="memory:")


def test_a_wrong_setting_refuses_the_app_in_one_line() -> None:
    with pytest.raises(errors.InvalidSettings, match="store = 5 does not fit"):
        emq.App(5)  # type: ignore[arg-type]
    Path("emq.toml").write_text("colour = 1\n")
    with pytest.raises(errors.InvalidSettings, match="there is no key 'colour'"):
        emq.App()


def test_a_host_opens_the_app_of_the_module_and_the_options_of_the_command_go_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.path", ["", *os.sys.path])  # type: ignore[attr-defined]
    Path("emq.toml").write_text('store = "sqlite:///file.db"\ndrain_s = 3.0\n')
    Path("one_configuration.py").write_text('import emq\napp = emq.App("sqlite:///own.db")\nfree = emq.App()\n')
    Path("other.toml").write_text('store = "sqlite:///other.db"\ndrain_s = 4.0\n')

    def opened(app: str, file: str | None = None, **options: Any) -> emq.Settings:
        found = binding.app_of(Session({"app": f"one_configuration:{app}", **options}, file))
        assert found is binding.load(f"one_configuration:{app}")
        return found.settings

    assert (opened("free").store, opened("free").drain_s) == ("sqlite:///file.db", 3.0)
    assert (opened("free", "other.toml").store, opened("free", "other.toml").drain_s) == ("sqlite:///other.db", 4.0)
    assert not caplog.records
    assert opened("app").store == "sqlite:///own.db"
    assert "gives store='sqlite:///own.db' itself, which goes before the 'sqlite:///file.db'" in caplog.text
    caplog.clear()
    assert opened("app", store="sqlite:///asked.db").store == "sqlite:///asked.db"
    assert not caplog.records


def test_a_variable_that_names_no_setting_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    ours = {"EMQ_STORE": "memory:", "EMQ_HOST_ARGS": "--processes 2"}
    links = {"EMQ_HOST_SERVICE_HOST": "10.0.0.1", "EMQ_HOST_PORT_80_TCP_ADDR": "10.0.0.1", "EMQ_PORT": "tcp://10.0.0.1"}
    settings.load(environ={**ours, **links, "EMQX_STORE": "x"})
    assert not caplog.records
    for _ in range(2):
        settings.load(environ={"EMQ_SOTRE": "redis://h", "EMQ_XYZ": "red"})
    assert [r.getMessage() for r in caplog.records] == [
        "the environment variable EMQ_SOTRE names no setting and is ignored; did you mean EMQ_STORE?",
        "the environment variable EMQ_XYZ names no setting and is ignored; `emq settings` lists all settings",
    ]


def touch(name: str) -> None:
    Path(name).touch()


READING = (
    *("topic list", "topic show t", "topic export", "stats", "top --count 1", "lag", "hosts", "schedule list t"),
    *("dead list t", "dead show t x", "offsets show t", "trace x", "publish t x", "schedule recall t x"),
    *("topic set t qps=1", "topic delete t --yes", "dead replay t"),
)


@pytest.mark.parametrize("store", ["sqlite:///emq.db", "redis://127.0.0.1:1"])
@pytest.mark.parametrize("line", READING)
def test_a_command_that_needs_a_topic_creates_no_database(line: str, store: str) -> None:
    shell = Shell()
    shell(f"{line} --store {store}", code=0 if line == "hosts" and store.startswith("sqlite") else 1)
    assert os.listdir() == []
    said = " ".join(shell.error.split())
    assert line == "hosts" or f"no EMQ database at sqlite:///{Path('emq.db').absolute()} yet" in said


def test_a_command_that_creates_topics_creates_the_database() -> None:
    Shell()("topic create t --qps 1")
    assert os.path.exists("emq.db")
    Path("topics.json").write_text('{"topics": [{"name": "a", "qps": 1}]}')
    Shell()("topic import topics.json --store sqlite:///second.db")
    assert os.path.exists("second.db")


async def test_a_file_with_other_tables_is_not_taken_for_a_database(tmp_path: Path) -> None:
    touch("emq.db")
    with pytest.raises(errors.NoDatabase, match=r"no EMQ database at sqlite:.*emq\.db yet"):
        async with emq.App("sqlite:///emq.db", create=False):
            pass
    async with emq.App("memory:", database="sqlite:///catalog.db"):
        pass
    with pytest.raises(errors.NoDatabase, match=r"store\.db yet"):
        async with emq.App("sqlite:///store.db", database="sqlite:///catalog.db", create=False):
            pass
    assert "store.db" not in os.listdir()
    async with emq.App("memory:", create=False) as app:
        assert await app.catalog.list() == []


async def test_the_error_for_an_unknown_topic_names_store_and_database(tmp_path: Path) -> None:
    async with emq.App("sqlite:///emq.db") as app:
        await app.create_topic("orders", qps=1)
        place = rf"in online \(store and database sqlite:///{tmp_path}/emq\.db\)"
        for call in (
            app.publish("order", b"x"),
            app.publish_many("order", [b"x"]),
            app.schedule("order", b"x", every_s=1),
            app.receive("order"),
            app.recall("order", "x"),
            app.catalog.update("order", qps=2),
        ):
            with pytest.raises(errors.UnknownTopic, match=f"no topic 'order' {place}; did you mean 'orders'"):
                await call
    async with emq.App("memory:", database="sqlite:///emq.db") as app:
        with pytest.raises(errors.UnknownTopic, match=rf"\(store memory:, database sqlite:///{tmp_path}/emq\.db\)"):
            await app.publish("nothing", b"x")


async def test_a_shared_store_with_its_topics_in_a_local_file_is_warned_about(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with emq.App(redis_url):
        pass
    [said] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert f"many machines can share the store {redis_url}" in said
    assert f"the file sqlite:///{os.getcwd()}/emq.db" in said
    caplog.clear()
    for app in (emq.App(redis_url, database="sqlite:///named.db"), emq.App(redis_url, create=False), emq.App()):
        async with app:
            pass
    assert not [r for r in caplog.records if r.levelno == logging.WARNING]


async def test_an_app_is_opened_once_and_configured_before() -> None:
    app = emq.App("memory:")
    with pytest.raises(errors.WrongState, match="not open; use `async with app:`"):
        await app.publish("t", b"x")
    async with app:
        with pytest.raises(errors.WrongState, match="open already; enter it once"):
            await app.__aenter__()
        with pytest.raises(errors.WrongState, match="configure it before"):
            app.configure(drain_s=1.0)
    app.configure(drain_s=1.0)
    assert (app.settings.drain_s, app.settings.store) == (1.0, "memory:")


async def test_an_app_that_was_left_takes_no_message() -> None:
    app = emq.App("memory:", database="sqlite://")
    for _ in range(2):
        async with app:
            await app.create_topic("orders", qps=5)
            await app.publish("orders", "1")
        for call in (
            app.publish("orders", "2"),
            app.publish_many("orders", ["2"]),
            app.publish("orders", "2", delay_ms=50),
        ):
            with pytest.raises(errors.EMQError, match="is closed; open it again"):
                await call

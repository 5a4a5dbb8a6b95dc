"""Settings: a file, environment variables, arguments; the later goes before the earlier."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from emq.runtime import errors, settings
from emq.runtime.environment import Environment


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_arguments_go_before_the_environment_and_that_before_the_file() -> None:
    Path("emq.toml").write_text('store = "memory:"\nhost_name = "file"\ncheckpoint_s = 3\ndrain_s = 4.5\n')
    environ = {"EMQ_HOST_NAME": "environment", "EMQ_CHECKPOINT_S": "2", "PATH": "/bin", "EMQ_UNKNOWN": "x"}
    found = settings.load(environ=environ, checkpoint_s=1.0, drain_s=None)
    assert (found.store, found.host_name, found.checkpoint_s, found.drain_s) == ("memory:", "environment", 1.0, 4.5)
    assert found.environment is Environment.ONLINE


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("Off", False), ("false", False)])
def test_a_switch_is_read_from_the_environment(text: str, value: bool) -> None:
    assert settings.load(environ={"EMQ_LUA_FOLDS": text}).lua_folds is value


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("LUA_FOLDS", "maybe", "EMQ_LUA_FOLDS='maybe' must be true or false"),
        ("DRAIN_S", "soon", "EMQ_DRAIN_S='soon' must be a duration; give seconds"),
        ("CHECKPOINT_S", "nan", "nan"),
        ("CHECKPOINT_S", "inf", "inf"),
        ("DRAIN_S", "nan", "nan"),
    ],
)
def test_a_variable_that_does_not_fit_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=said):
        settings.load(environ={f"EMQ_{name}": value})


def test_nothing_given_means_the_defaults() -> None:
    assert settings.load(environ={}) == settings.Settings()


def test_a_file_may_be_named_and_must_then_be_there() -> None:
    Path("other.toml").write_text('log_level = "debug"')
    assert settings.load("other.toml", {}).log_level == "debug"
    with pytest.raises(errors.InvalidSettings, match=r"cannot read settings file none\.toml"):
        settings.load("none.toml", {})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("store = ", "not valid TOML"),
        ("x = 1", "settings file emq.toml: there is no key 'x'; the keys are store, database"),
        ('stor = "memory:"', "settings file emq.toml: there is no key 'stor'; did you mean 'store'?"),
        ("drain_s = -1", "drain_s = -1 must be at least 0"),
        ("checkpoint_s = 0", "checkpoint_s = 0 must be above 0 and at most 3,600"),
        ("max_in_flight = 0", "max_in_flight = 0 must be at least 1"),
        ("max_in_flight = 1.5", "max_in_flight"),
        ('log_level = "loud"', "log_level = 'loud' must be one of debug, error, info, warning"),
        ('environment = "staging"', "environment = 'staging' must be one of online, sandbox"),
        ('cluster_auth = "none"', "cluster_auth = 'none' must be one of digest, sasl"),
        ('cluster = "etcd://me:secret@h"', "cluster = 'etcd://me:***@h' must begin with zookeeper://"),
        ('drain_s = "soon"', "drain_s = 'soon' is not a duration; give seconds, or a text such as 90s"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(text: str, named: str) -> None:
    Path("emq.toml").write_text(text)
    with pytest.raises(errors.InvalidSettings) as caught:
        settings.load(environ={})
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("store", "database"),
    [
        ("memory:", "sqlite://"),
        ("sqlite:///a.db?max_queue_qps=3", "sqlite:///a.db"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql://u@h/d?sslmode=require&max_queue_qps=3", "postgresql://u@h/d?sslmode=require"),
        ("redis://h", "sqlite:///emq.db"),
    ],
)
def test_the_database_lies_beside_the_store_unless_it_is_named(store: str, database: str) -> None:
    assert settings.Settings(store=store).database_url == database
    assert settings.Settings(store=store, database="sqlite:///x.db").database_url == "sqlite:///x.db"


def test_the_defaults_file_has_every_setting_and_is_valid_when_uncommented() -> None:
    text = settings.defaults_file()
    assert tomllib.loads(text) == {}
    lines = [line[2:] for line in text.splitlines() if line.startswith("# ") and " = " in line]
    assert tomllib.loads("\n".join(lines)) == msgspec.to_builtins(settings.Settings())
    assert set(settings.DESCRIPTIONS) == set(settings.Settings.__struct_fields__)

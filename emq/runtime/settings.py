"""Settings: one TOML file, overridden by `EMQ_` environment variables, with defaults for everything."""

from __future__ import annotations

import difflib
import functools
import logging
import os
import pathlib
import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta

from emq.runtime import documents, durations, errors, inputs, passwords
from emq.runtime.environment import Environment

DEFAULT_FILE = "emq.toml"
PREFIX = "EMQ_"
log = logging.getLogger(__name__)

_OTHERS = re.compile(r"(HOST_ARGS|REQUIRE_SERVERS)|(.*_)?(SERVICE_(HOST|PORT.*)|PORT(_\d+_(TCP|UDP|SCTP).*)?)")
"""Names after the prefix that are not settings: for systemd units, tests, and the variables that Kubernetes sets for a
service whose name begins with "emq"."""

_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}

DESCRIPTIONS = {
    "store": "URL of the store that keeps the messages: memory:, sqlite:///FILE, postgresql://USER@HOST/DB, "
    "redis://HOST:PORT/DB, redis+cluster://HOST:PORT,HOST:PORT, redis+sentinel://HOST:PORT,HOST:PORT/MASTER, "
    "redis+servers://HOST:PORT,HOST:PORT (rediss... for TLS).",
    "database": "URL of the database with topics and checkpoints: sqlite:///FILE or postgresql://...; empty: beside "
    "the store (the same SQLite file or PostgreSQL database; else sqlite:///emq.db).",
    "environment": "online for production, sandbox for trials; the two share no topics and no messages.",
    "cluster": "ZooKeeper in which hosts meet: zookeeper://[USER:PASSWORD@]HOST:PORT,HOST:PORT[/CHROOT], or "
    "zookeepers:// for TLS. Empty: hosts meet in the database, so all hosts of one store must then share one database.",
    "cluster_auth": "How ZooKeeper checks USER:PASSWORD of `cluster`: digest or sasl.",
    "cluster_ca": "PEM file of the authorities that signed the ZooKeeper servers' certificates, for zookeepers://.",
    "cluster_cert": "PEM file of this host's certificate, if the servers ask for one.",
    "cluster_key": "PEM file of that certificate's key.",
    "session_timeout_s": "Seconds of silence after which the cluster gives a host's groups to other hosts; the silent "
    "host itself stops after two thirds of this time.",
    "weight": "This host's share of the groups, compared with the weights of the others; 0 means none.",
    "host_name": "Name of this host in its cluster; empty: machine name and process id.",
    "app": "Python module with handlers, as module or module:attribute; empty: only push over HTTP.",
    "checkpoint_s": "Seconds between checkpoints, which save progress; a crash repeats at most this much finished "
    "work.",
    "clock_bound_s": "Most seconds by which a host may misjudge the database's clock, which all hosts follow; beyond "
    "this the host starts nothing.",
    "max_unsaved_s": "While checkpoints fail, a group goes on for this many seconds of its quota (at least twice "
    "checkpoint_s and one buffer of each priority), then waits for the database. A crash repeats no more than that.",
    "lag_s": "Seconds between two counts of what waits on a host; each finds topics in trouble, and asks the store.",
    "drain_s": "Seconds that a host which stops waits for messages in flight.",
    "max_in_flight": "Most messages of one host that are started and not yet finished.",
    "window_begins_ms": "Milliseconds at the begin of each second in which a topic with pacing=window starts nothing: "
    "an endpoint whose clock differs by less then counts the same starts in each second.",
    "push_allow": "Addresses and networks, with commas between them, to which push over HTTP may connect besides "
    "public ones, such as 10.1.0.0/16; * for all. The same on all hosts.",
    "push_attempts": "Keep a record of each attempt to push a message in the database, for its tenant to see.",
    "push_https_only": "Push to https URLs only.",
    "push_ports": "Ports to which push may connect, with commas between them, such as 443,8443; empty: all ports.",
    "push_proxy_url": "Forward proxy through which all pushes go out, such as http://127.0.0.1:4750, with "
    "USER:PASSWORD@ if it asks for them. The proxy then decides which addresses are reached. Empty: none.",
    "secret_key": "Key that encrypts the secrets of endpoints in the database: base64 of 32 bytes. Several, with "
    "spaces between them, for a change: the first encrypts, all decrypt. Empty: secrets are kept as they are.",
    "secret_key_file": "File with more of these keys, such as one that a secret manager writes.",
    "lua_folds": "Allow topics to merge messages by Lua code of their own (a fold). It runs in the store; code that "
    "never ends blocks a Redis server.",
    "trail": "Directory of the trail, the record of every message's life; empty: no trail.",
    "metrics": "HOST:PORT at which each host serves /metrics, /livez and /readyz over HTTP; :PORT for all addresses of "
    "the machine; the processes of one host take the port and those above it. Empty: not at all.",
    "api": "HOST:PORT at which `emq api` and `emq up` serve the HTTP API of the push service, such as 127.0.0.1:8080; "
    ":PORT for all addresses of the machine. Empty: `emq up` does not serve it, `emq api` does at 127.0.0.1:8080.",
    "api_requests_per_s": "Most requests a second that the API takes of one tenant, or of one key without a tenant, on "
    "the average; as many more may come at once.",
    "api_portal": "TOML file: how the API's pages look (name, logo, font, colours), and which sites may frame them.",
    "log_level": "Least level that a host logs: debug, info, warning or error.",
    "log_format": "How a host logs: text for people, or json, one object for each line.",
}


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a process of EMQ; `DESCRIPTIONS` explains each."""

    store: str = "sqlite:///emq.db"
    database: str = ""
    environment: Environment = Environment.ONLINE
    cluster: str = ""
    cluster_auth: Literal["digest", "sasl"] = "digest"
    cluster_ca: str = ""
    cluster_cert: str = ""
    cluster_key: str = ""
    session_timeout_s: Annotated[float, Meta(ge=1, le=120)] = 10.0
    weight: Annotated[float, Meta(ge=0, le=1000)] = 1.0
    host_name: str = ""
    app: str = ""
    checkpoint_s: Annotated[float, Meta(gt=0, le=3600)] = 1.0
    max_unsaved_s: Annotated[float, Meta(gt=0, le=86_400)] = 5.0
    clock_bound_s: Annotated[float, Meta(ge=0.001, le=60)] = 0.25
    lag_s: Annotated[float, Meta(ge=0.5, le=20)] = 10.0
    drain_s: Annotated[float, Meta(ge=0)] = 10.0
    max_in_flight: Annotated[int, Meta(ge=1)] = 20_000
    window_begins_ms: Annotated[float, Meta(ge=0, le=100)] = 5.0
    push_allow: str = ""
    push_attempts: bool = True
    push_https_only: bool = False
    push_ports: str = ""
    push_proxy_url: str = ""
    secret_key: str = ""
    secret_key_file: str = ""
    lua_folds: bool = False
    trail: str = ""
    metrics: str = ""
    api: str = ""
    api_requests_per_s: Annotated[float, Meta(gt=0, le=1_000_000)] = 1_000.0
    api_portal: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @property
    def database_url(self) -> str:
        """URL of the database for catalog and checkpoints: the setting, or derived from the store's URL."""
        if self.database:
            return self.database
        scheme = self.store.partition(":")[0]
        if scheme in ("sqlite", "postgresql"):
            place, _, query = self.store.partition("?")
            # The database needs all parameters of the connection (sslmode, ...), and refuses the one of the store.
            kept = "&".join(p for p in query.split("&") if p and p.partition("=")[0] != "max_queue_qps")
            return f"{place}?{kept}" if kept else place
        return "sqlite://" if scheme == "memory" else "sqlite:///emq.db"

    @property
    def database_is_private(self) -> bool:
        """True if the database lies in this process's memory, where no other process sees it."""
        return self.database_url in ("sqlite://", "sqlite:///:memory:")


class Address(NamedTuple):
    """An address to serve at; the empty host stands for all addresses of the machine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str, setting: str = "metrics", example: str = "127.0.0.1:9464") -> Address:
    """Return the address that `HOST:PORT`, `[IPV6]:PORT` or `:PORT` names. Raises `InvalidSettings`."""
    found = re.fullmatch(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^\[\]:/\s]*)):(?P<port>[0-9]{1,5})", text)
    if found is None or int(found["port"]) > 65_535:
        raise errors.InvalidSettings(f"settings: {setting} = {inputs.shown(text)} must be HOST:PORT, such as {example}")
    return Address(found["v6"] or found["host"] or "", int(found["port"]))


def load(path: str | None = None, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Read the settings. A variable that begins with `EMQ_` and names no setting is logged as a warning.

    Args:
        path: a TOML file; None means `emq.toml` in the current directory, if it exists.
        environ: the variables that hold `EMQ_STORE` and so on; None means the process's environment.
        overrides: settings that override all others; None values are ignored.

    Raises:
        InvalidSettings: the file is missing or malformed, a name is unknown, or a value does not fit.
    """
    values: dict[str, Any] = _read(path)
    for name, text in (os.environ if environ is None else environ).items():
        if not name.startswith(PREFIX):
            continue
        if (key := name.removeprefix(PREFIX).lower()) in Settings.__struct_fields__:
            values[key] = _converted(name, text, get_type_hints(Settings)[key])
        elif not _OTHERS.fullmatch(name.removeprefix(PREFIX)):
            _name_unknown(name)
    values.update({key: value for key, value in overrides.items() if value is not None})
    return _settings(values)


def shown(settings: Settings) -> dict[str, Any]:
    """Return the settings as they may be shown: without passwords and keys."""
    values: dict[str, Any] = msgspec.to_builtins(settings)
    values["database"] = settings.database_url
    values["secret_key"] = "***" if settings.secret_key else ""
    return {name: passwords.hide_password(value) if isinstance(value, str) else value for name, value in values.items()}


def merged(settings: Settings, **overrides: Any) -> Settings:
    """Return `settings` with overrides; None values are ignored. Raises `InvalidSettings` like `load`."""
    values = {**msgspec.to_builtins(settings), **{k: v for k, v in overrides.items() if v is not None}}
    return _settings(values)


def defaults_file() -> str:
    """Return the text of a TOML file that has every setting at its default, commented out, with its explanation."""
    lines = ["# Settings of EMQ. Each may also be given as an environment variable: EMQ_STORE, EMQ_DATABASE, ...", ""]
    for name, value in msgspec.to_builtins(Settings()).items():
        shown = f'"{value}"' if isinstance(value, str) else str(value).lower()
        lines += [f"# {DESCRIPTIONS[name]}", f"# {name} = {shown}", ""]
    return "\n".join(lines)


def _read(path: str | None) -> dict[str, Any]:
    file = pathlib.Path(path or DEFAULT_FILE)
    if path is None and not file.exists():
        return {}
    shown = " ".join(str(file).split())
    try:
        text = file.read_text()
    except OSError as exc:
        raise errors.InvalidSettings(f"cannot read settings file {shown}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise errors.InvalidSettings(f"settings file {shown} is not valid TOML: {exc}") from exc
    except ValueError as exc:  # no file has such a name
        raise errors.InvalidSettings(f"cannot read settings file {shown!r}: {exc}") from exc
    values: dict[str, Any] = documents.parsed(text, "toml", f"settings file {shown}", errors.InvalidSettings)
    names = Settings.__struct_fields__
    for key in values.keys() - set(names):
        raise errors.InvalidSettings(f"settings file {shown}: {documents.unknown(key, key, names)}")
    return values


@functools.cache  # a process reads its settings several times
def _name_unknown(name: str) -> None:
    found = difflib.get_close_matches(name.removeprefix(PREFIX).lower(), Settings.__struct_fields__, n=1)
    hint = f"did you mean {PREFIX}{found[0].upper()}?" if found else "`emq settings` lists all settings"
    log.warning("the environment variable %s names no setting and is ignored; %s", name, hint)


def _converted(name: str, text: str, hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        hint = typing.get_args(hint)[0]
    if hint is bool:
        if (lower := text.lower()) not in _BOOLEANS:
            raise errors.InvalidSettings(f"environment variable {name}={inputs.shown(text)} must be true or false")
        return _BOOLEANS[lower]
    if hint not in (int, float):
        return text
    try:
        return hint(durations.in_seconds(name, text))
    except ValueError:
        right = f"a duration; {durations.REMEDY}" if durations.IN_SECONDS.search(name) else "a number"
        raise errors.InvalidSettings(f"environment variable {name}={inputs.shown(text)} must be {right}") from None


def _settings(values: Mapping[str, Any]) -> Settings:
    settings = documents.converted(values, Settings, "settings", errors.InvalidSettings)
    if settings.cluster and not settings.cluster.startswith(("zookeeper://", "zookeepers://")):
        shown = passwords.hide_password(settings.cluster)
        raise errors.InvalidSettings(f"settings: cluster = {shown!r} must begin with zookeeper:// or zookeepers://")
    if settings.metrics:
        address(settings.metrics)
    if settings.api:
        address(settings.api, "api", "127.0.0.1:8080")
    return settings

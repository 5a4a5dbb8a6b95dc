"""The parts of the URL of a store on Redis."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse
from typing import Any

from redis.asyncio.connection import parse_url

from emq.runtime import errors, passwords

PORTS = {"sentinel": 26_379}
DEFAULT_PORT = 6_379

MOST_SHARDS = 4_096


@dataclasses.dataclass(frozen=True)
class Address:
    """Attributes:
    kind: "" for one server, else "cluster", "sentinel" or "servers".
    hosts: the servers in the URL, as (host, port).
    master_name: name of the master at the sentinels.
    shards: number of shards in the URL, or None.
    max_queue_qps: most operations a second that a topic may ask of one queue, or None.
    sentinel_username, sentinel_password: account at the sentinels, if it differs from the servers'.
    shown: the URL without user and password, for texts.
    """

    kind: str
    hosts: tuple[tuple[str, int], ...]
    master_name: str
    shards: int | None
    max_queue_qps: float | None
    sentinel_username: str | None
    sentinel_password: str | None
    shown: str
    _single: urllib.parse.SplitResult

    def options(self, host: str, port: int) -> dict[str, Any]:
        """Return the arguments of a connection to one server: address, account, TLS, and the URL's other parameters."""
        place = f"[{host}]" if ":" in host else host
        account, at, _ = self._single.netloc.rpartition("@")
        url = self._single._replace(netloc=f"{account}{at}{place}:{port}")
        try:
            return dict(parse_url(urllib.parse.urlunsplit(url)))
        except ValueError as exc:
            raise errors.InvalidSettings(f"store URL {self.shown}: {exc}") from exc


def parsed(url: str) -> Address:
    """Read the URL of a store; `emq_stores.redis.opening.open_store` explains its forms.

    Raises:
        InvalidSettings: a part of the URL is wrong; the text names it.
    """
    parts = urllib.parse.urlsplit(url)
    unnamed = [piece for piece in parts.query.split("&") if "=" not in piece]
    if "@" in "".join([parts.path, parts.fragment, *unnamed]):
        # The text before the /, ? or # is the beginning of a password, which no error may show as a host's name.
        raise errors.InvalidSettings(
            f"store URL {passwords.hide_password(url)!r} has an @ behind a /, ? or #; write those of a password as "
            "%2F, %3F and %23"
        )
    scheme, _, kind = parts.scheme.partition("+")
    named = parts.netloc.rpartition("@")[2]
    shown = f"{parts.scheme}://{named}"
    options = dict(urllib.parse.parse_qsl(parts.query))
    if "," in named and "" in named.split(","):  # else localhost would be one of several servers
        raise errors.InvalidSettings(f"store URL {shown}: a comma has no server next to it; leave it out")
    hosts = tuple(_host(place, PORTS.get(kind, DEFAULT_PORT), shown) for place in named.split(","))
    path, master_name = parts.path, ""
    if kind == "":
        host, port = hosts[0]
        shown = f"{parts.scheme}://{host}:{port}"
        if len(hosts) > 1:
            raise errors.InvalidSettings(
                f"store URL {shown}: one server only; for several use {scheme}+servers://, for a cluster {scheme}+cluster://"
            )
    elif kind == "sentinel":
        master_name, _, database = parts.path.strip("/").partition("/")
        path = f"/{database}" if database else ""
        if not master_name:
            raise errors.InvalidSettings(f"store URL {shown}: name the master that the sentinels watch: {shown}/NAME")
    elif kind == "cluster" and parts.path.strip("/") not in ("", "0"):
        raise errors.InvalidSettings(f"store URL {shown}{parts.path}: a cluster has database 0 only; leave it out")
    if kind != "cluster" and not re.fullmatch(r"[0-9]*", database := path.strip("/")):
        raise errors.InvalidSettings(f"store URL {shown}: a database has a number, such as /1, not {database!r}")
    shards = _number(options.pop("shards", None), "shards", shown)
    if shards is not None and not (shards.is_integer() and 1 <= shards <= MOST_SHARDS):
        raise errors.InvalidSettings(f"store URL {shown}: shards={shards:g} must be from 1 to {MOST_SHARDS}")
    return Address(
        kind,
        hosts,
        master_name,
        None if shards is None else int(shards),
        _number(options.pop("max_queue_qps", None), "max_queue_qps", shown),
        options.pop("sentinel_username", None),
        options.pop("sentinel_password", None),
        shown,
        parts._replace(scheme=scheme, path="" if kind == "cluster" else path, query=urllib.parse.urlencode(options)),
    )


def _host(place: str, default_port: int, shown: str) -> tuple[str, int]:
    one = urllib.parse.urlsplit(f"//{place}")
    try:
        return one.hostname or "localhost", one.port or default_port
    except ValueError as exc:
        raise errors.InvalidSettings(f"store URL {shown}: {place!r} is not HOST:PORT ({exc})") from exc


def _number(text: str | None, name: str, shown: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError as exc:
        raise errors.InvalidSettings(f"store URL {shown}: {name} must be a number, not {text!r}") from exc

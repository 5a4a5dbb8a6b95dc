"""The URL of a cluster, and a function that parses it."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from urllib.parse import unquote

from emq.runtime import errors, passwords

DEFAULT_PORT = 2181
_ENCODED = "percent-encode @ : / ? # and % in user and password"
_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")


@dataclasses.dataclass(frozen=True)
class Address:
    """Attributes:
    servers: each as host:port, an IPv6 address in brackets.
    chroot: the node below which everything lies: "" for the root, else "/a" or "/a/b".
    user: the user's name; "" for no user.
    password: the user's password; never shown.
    tls: True for encrypted connections.
    """

    servers: tuple[str, ...]
    chroot: str = ""
    user: str = ""
    password: str = dataclasses.field(default="", repr=False)
    tls: bool = False

    def __str__(self) -> str:
        return ",".join(self.servers) + self.chroot


def parse(url: str) -> Address:
    """Parse `zookeeper://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT][/CHROOT]`; `zookeepers://` means TLS.

    User, password and chroot may be percent-encoded. A server without a port has port 2181.

    Raises:
        InvalidSettings: the URL is wrong; the error names the wrong part, and never the password.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in ("zookeeper", "zookeepers"):
        raise _invalid(url, "must begin with zookeeper:// or zookeepers://")
    authority, slash, path = rest.partition("/")
    # The errors below quote pieces of the URL, so first refuse a URL in which such a piece may be of a password.
    if "@" in path or "?" in rest or "#" in rest or authority.count("@") > 1:
        raise _invalid(url, f"has @, ? or # where none is expected; {_ENCODED}")
    account, _, hosts = authority.rpartition("@")
    user, password = _account(url, account, given="@" in authority)
    servers = tuple(_server(url, host) for host in hosts.split(","))
    return Address(servers, _chroot(url, unquote(slash + path)), user, password, scheme == "zookeepers")


def _account(url: str, account: str, *, given: bool) -> tuple[str, str]:
    if not given:
        return "", ""
    user, _, password = account.partition(":")
    if not user or not password or ":" in password:
        raise _invalid(url, f"needs USER:PASSWORD before the @; {_ENCODED}")
    if ":" in unquote(user):
        raise _invalid(url, f"has the user {unquote(user)!r}; ZooKeeper allows no colon in it")
    return unquote(user), unquote(password)


def _server(url: str, text: str) -> str:
    bracketed = re.fullmatch(r"(\[[^\]]*\])(.*)", text)
    host, end = bracketed.groups() if bracketed else _split(text)
    if not _is_host(host):
        raise _invalid(url, f"has the server {text!r}; write HOST, HOST:PORT or [IPV6]:PORT, separated by commas")
    port = end.removeprefix(":") if end else str(DEFAULT_PORT)
    if (end and not end.startswith(":")) or not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise _invalid(url, f"has the server {text!r}; its port must be from 1 to 65535")
    return f"{host}:{int(port)}"


def _split(text: str) -> tuple[str, str]:
    host, colon, port = text.partition(":")
    return host, colon + port


def _is_host(host: str) -> bool:
    if not host.startswith("["):
        return _NAME.fullmatch(host) is not None
    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return False
    return True


def _chroot(url: str, path: str) -> str:
    chroot = path.removesuffix("/")
    names = chroot.split("/")[1:]
    if any(name in ("", ".", "..") or not name.isprintable() for name in names):
        raise _invalid(url, f"has the chroot {path!r}; write /NAME or /NAME/NAME")
    if names[:1] == ["zookeeper"]:
        raise _invalid(url, f"has the chroot {path!r}; /zookeeper is ZooKeeper's own, choose another")
    return chroot


def _invalid(url: str, reason: str) -> errors.InvalidSettings:
    return errors.InvalidSettings(f"cluster {passwords.hide_password(url)!r} {reason}")

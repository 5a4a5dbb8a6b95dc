"""The addresses to which push connects: public ones, and those that the setting `push_allow` names.

An endpoint's URL decides where this host connects to. Without a filter this could be the host itself, a database beside
it, or the metadata service of a cloud, which hands out credentials. The filter checks the address of each connection
just before it is made, so a name cannot get around it by resolving to another address later, or to several.

A forward proxy (`emq_push.proxy`) looks names up and connects itself. The filter then checks only addresses that stand
in a URL.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import yarl

from emq import Settings
from emq.runtime import errors
from emq_push.proxy import Proxy

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_CLOSED = {
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
    "shared by a provider's customers": ("100.64.0.0/10",),
    "link-local": ("169.254.0.0/16", "fe80::/10"),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "unspecified": ("0.0.0.0/8", "::/128"),
    "reserved": (
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
        *("192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24", "240.0.0.0/4"),
        *("100::/64", "2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20", "5f00::/16"),
    ),
    "metadata": ("168.63.129.16/32",),
}
"""Networks that are not the public internet: the special-purpose registries of IANA (RFC 6890 and its successors). The
metadata services of clouds are at link-local, private and shared addresses, and Azure's is at a public one."""

_CARRIERS = {
    "::ffff:0:0/96": 96,  # IPv4-mapped
    "::/96": 96,  # IPv4-compatible, out of use
    "::ffff:0:0:0/96": 96,  # IPv4-translated
    "64:ff9b::/96": 96,  # NAT64
    "2002::/16": 16,  # 6to4
}
"""Networks of IPv6 addresses that stand for an IPv4 address, and the bit at which this begins."""

_LOCAL_CARRIERS = ("64:ff9b:1::/48",)
"""A network's own NAT64: the place of the IPv4 address in it is not known."""

_PUBLIC = (
    *("2001:200::/23", "2001:400::/23", "2001:600::/23", "2001:800::/22", "2001:c00::/23", "2001:e00::/23"),
    *("2001:1200::/23", "2001:1400::/22", "2001:1800::/23", "2001:1a00::/23", "2001:1c00::/22", "2001:2000::/19"),
    *("2001:4000::/23", "2001:4200::/23", "2001:4400::/23", "2001:4600::/23", "2001:4800::/23", "2001:4a00::/23"),
    *("2001:4c00::/23", "2001:5000::/20", "2001:8000::/19", "2001:a000::/20", "2001:b000::/20", "2003::/18"),
    *("2400::/12", "2410::/12", "2600::/12", "2610::/23", "2620::/23", "2630::/12", "2800::/12", "2a00::/12"),
    *("2a10::/12", "2c00::/12"),
)
"""The networks of IPv6 that IANA has assigned, by its registry "IPv6 Global Unicast Address Assignments". The rest is
reserved or unassigned, except addresses that stand for an IPv4 address. To push to a newer network, name it in
`push_allow`."""

_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""Bits 64 to 95 of an ISATAP address, in any network; its last 32 bits are an IPv4 address (RFC 5214)."""

EVERYTHING = "*"


class ForbiddenAddress(OSError):
    """The address of a connection is not one to which push may connect."""


class AddressFilter:
    """Decides to which URLs and addresses push may connect.

    Args:
        https_only: refuse http URLs.
        ports: the only ports to connect to; none for all.
        proxy: through which all requests go; None for none.
        allowed: networks (`10.1.0.0/16`), addresses, or `*` for all, to which push may connect besides public ones.
            Names of hosts do not help: the owner of a name decides on its address.

    Raises:
        InvalidSettings: one of them is none of these.
    """

    def __init__(
        self,
        allowed: Sequence[str] = (),
        *,
        https_only: bool = False,
        ports: frozenset[int] = frozenset(),
        proxy: Proxy | None = None,
    ) -> None:
        self.proxy = proxy
        self._https_only = https_only
        self._ports = ports
        self._all = EVERYTHING in allowed
        self._allowed = [_network(text) for text in allowed if text != EVERYTHING]

    @classmethod
    def of_settings(cls, settings: Settings) -> AddressFilter:
        """Return the filter of the settings `push_allow`, `push_https_only`, `push_ports` and `push_proxy_url`.

        Raises:
            InvalidSettings: a part of them is none.
        """
        ports = frozenset(map(_port, _parts(settings.push_ports)))
        proxy = Proxy.of_setting(settings.push_proxy_url)
        return cls(_parts(settings.push_allow), https_only=settings.push_https_only, ports=ports, proxy=proxy)

    def check_url(self, url: yarl.URL) -> None:
        """Raise `ForbiddenAddress` if the settings forbid the URL's scheme or port; its address is not looked at."""
        if self._https_only and url.scheme != "https":
            raise ForbiddenAddress("an http URL is not allowed here (the setting push_https_only); give an https URL")
        if self._ports and url.port not in self._ports:
            allowed = ", ".join(map(str, sorted(self._ports)))
            raise ForbiddenAddress(f"port {url.port} is not allowed; the setting push_ports allows {allowed}")

    def refusal(self, address: str) -> str | None:
        """Return why push does not connect to an address, as a noun phrase; None if it may."""
        if self._all:
            return None
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return f"{address!r}, which is no address"
        seen = [found, *_carried(found)]
        if any(_contains(network, each) for network in self._allowed for each in seen):
            return None
        for each in seen:
            for kind, networks in _NETWORKS.items():
                if any(_contains(network, each) for network in networks):
                    return f"the {kind} address {found}"
        carried = any(found in network for network, _ in _CARRIER_NETWORKS if network.version == found.version)
        if found.version == 6 and not carried and not any(found in network for network in _PUBLIC_NETWORKS):
            return f"the reserved address {found}"
        return f"this machine's own address {found}" if any(map(is_own, seen)) else None

    def check(self, address: str) -> None:
        """Raise `ForbiddenAddress` if push may not connect to the address."""
        if (refusal := self.refusal(address)) is not None:
            raise ForbiddenAddress(f"{refusal} is not allowed; allow it with the setting push_allow")

    def check_literal(self, host: str) -> None:
        """Raise `ForbiddenAddress` if the host of a URL is an address, in any notation, that push does not connect to.

        For requests through a proxy, which may read notations of addresses in another way than this host.
        """
        if (address := _address_in(host)) is not None:
            self.check(address)

    def check_host(self, host: str) -> None:
        """Refuse the host of a URL if it is such an address, or a name of this machine; other names are checked later.

        Raises:
            ValueError: push would not connect to it.
        """
        address = _address_in(host)
        if address is None:
            return
        if (refusal := self.refusal(address)) is not None:
            network = f"{address}/{32 if ':' not in address else 128}"
            raise ValueError(
                f"push.url leads to {refusal}, which is not allowed; to push there, set push_allow (the variable "
                f"EMQ_PUSH_ALLOW) to {network} or a network around it, on this machine and on all hosts"
            )


def is_own(address: IPAddress) -> bool:
    """Return whether an address is one of this machine's interfaces, as they are now.

    Asks the system for the source address of packets to the address: only for its own addresses this is the address
    itself. Sends nothing.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((str(address), 9))
            return ipaddress.ip_address(asked.getsockname()[0].partition("%")[0]) == address
    except OSError:  # no route leads there
        return False


def _parts(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 65_535):
        raise errors.InvalidSettings(f"settings: push_ports has {text!r}; give ports from 1 to 65535, such as 443,8443")
    return int(text)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise errors.InvalidSettings(
            f"settings: push_allow has {text!r}; give addresses or networks, such as 10.0.0.0/8, or * for all"
        ) from None


_NETWORKS = {kind: [ipaddress.ip_network(text) for text in networks] for kind, networks in _CLOSED.items()}
_NETWORKS["reserved"] += [ipaddress.ip_network(text) for text in _LOCAL_CARRIERS]
_PUBLIC_NETWORKS = [ipaddress.IPv6Network(text) for text in _PUBLIC]
_CARRIER_NETWORKS = [(ipaddress.IPv6Network(text), bit) for text, bit in _CARRIERS.items()]


def _contains(network: Network, address: IPAddress) -> bool:
    return network.version == address.version and address in network


def _carried(address: IPAddress) -> list[IPAddress]:
    """Return the IPv4 address for which an IPv6 address stands, if it does."""
    if not isinstance(address, ipaddress.IPv6Address):
        return []
    bits = int(address)
    carried = [bits >> (128 - bit - 32) & 0xFFFFFFFF for network, bit in _CARRIER_NETWORKS if address in network]
    if bits >> 32 & 0xFFFFFFFF in _ISATAP:
        carried.append(bits & 0xFFFFFFFF)
    return [*map(ipaddress.IPv4Address, carried)]


def _address_in(host: str) -> str | None:
    """Return the address in the host of a URL, also in the old notations of IPv4; None for a name to look up."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return "127.0.0.1"
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        try:
            return socket.inet_ntoa(socket.inet_aton(name))
        except (OSError, UnicodeError):
            return None
    return name

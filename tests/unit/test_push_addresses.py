"""The addresses to which push connects: which are refused, and that no way leads around the filter."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yarl
from hypothesis import given
from hypothesis import strategies as st

from emq.runtime import errors, settings
from emq.runtime.settings import load
from emq.storage.message import Message
from emq_push import addresses
from emq_push.addresses import AddressFilter
from emq_push.endpoint import Endpoint
from emq_push.pusher import Pusher
from emq_push.resolver import FairResolver
from support.served import served

FORBIDDEN = [
    *("127.0.0.1", "127.255.255.254", "::1", "0.0.0.0", "::"),
    *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd00:ec2::254", "fec0::1"),
    *("169.254.169.254", "169.254.170.2", "100.100.100.200", "100.64.0.1", "fe80::1", "fe80::1%eth0"),
    *("224.0.0.1", "239.255.255.255", "ff02::1", "255.255.255.255", "240.0.0.1"),
    *("192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::8.8.8.8"),
    *("2002:7f00:1::", "2002:a9fe:a9fe::1", "2001::1", "2001:db8::1", "100::1", "5f00::1", "3fff::1"),
    *("168.63.129.16", "::ffff:a83f:8110", "::ffff:0:127.0.0.1", "192.52.193.1", "192.31.196.1", "2620:4f:8000::1"),
    *("4000::1", "1::1", "e000::1", "2d00::1", "3ffe::1", "2001:6000::1", "3000::1"),
    *("2606:4700::5efe:10.0.0.1", "2a00:1450::200:5efe:127.0.0.1", "fe80::5efe:8.8.8.8"),
    *("not-an-address", "", "0x7f000001", "127.1", "2130706433", "0177.0.0.1"),
]
PUBLIC = [
    *("8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1", "169.253.1.1"),
    *("2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "::ffff:0:8.8.8.8", "2002:808:808::1"),
]


@pytest.mark.parametrize("address", FORBIDDEN)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert AddressFilter().refusal(address) is not None


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_not_refused(address: str) -> None:
    assert AddressFilter().refusal(address) is None


def test_the_addresses_of_this_machine_are_refused_also_if_they_are_public(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ipaddress.ip_address("8.8.4.4")
    monkeypatch.setattr(addresses, "is_own", lambda address: address == own)
    assert AddressFilter().refusal("8.8.4.4") == "this machine's own address 8.8.4.4"
    for carrier in ("64:ff9b::8.8.4.4", "2002:808:404::1", "::ffff:0:8.8.4.4", "::8.8.4.4", "2606:4700::5efe:8.8.4.4"):
        assert AddressFilter().refusal(carrier) == f"this machine's own address {ipaddress.ip_address(carrier)}"
    assert AddressFilter().refusal("8.8.8.8") is None
    assert AddressFilter(["8.8.4.4"]).refusal("8.8.4.4") is None


def test_the_system_tells_which_addresses_are_those_of_this_machine() -> None:
    assert addresses.is_own(ipaddress.ip_address("127.0.0.1"))
    assert not addresses.is_own(ipaddress.ip_address("8.8.8.8"))
    assert not addresses.is_own(ipaddress.ip_address("2606:4700::1111"))
    for *_, place in socket.getaddrinfo(socket.gethostname(), 9, type=socket.SOCK_DGRAM):
        name = str(place[0]).partition("%")[0]
        if not ipaddress.ip_address(name).is_loopback and not name.startswith("fe80"):
            assert addresses.is_own(ipaddress.ip_address(name)), name


@given(st.ip_addresses())
def test_nothing_that_python_calls_private_or_special_passes(address: Any) -> None:
    # Python counts some carriers of public IPv4 addresses as private; their IPv4 address decides here.
    if AddressFilter().refusal(str(address)) is None and not address.is_global:
        assert isinstance(address, ipaddress.IPv6Address)
        assert address.ipv4_mapped or address.sixtofour or address in ipaddress.ip_network("64:ff9b::/96")


def test_an_allowed_network_passes_in_all_its_forms_and_nothing_else_does() -> None:
    found = AddressFilter.of_settings(load(environ={}, push_allow="10.1.0.0/16, 192.168.7.7 fd00::/8"))
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "192.168.7.7", "fd12::1"):
        assert found.refusal(address) is None
    for address in ("10.2.0.1", "192.168.7.8", "127.0.0.1", "::ffff:10.2.0.1"):
        assert found.refusal(address) is not None
    assert all(AddressFilter(["*"]).refusal(address) is None for address in FORBIDDEN)


@pytest.mark.parametrize("text", ["10.0.0.0/33", "localhost", "10.0.0", "internal.example"])
def test_an_allowed_network_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"push_allow has .* give addresses or networks"):
        AddressFilter([text])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "LOCALHOST.", "me.localhost", "10.0.0.1"])
def test_a_url_that_leads_to_this_machine_is_refused_when_it_is_given(host: str) -> None:
    with pytest.raises(ValueError, match=r"push.url leads to the .* address .*EMQ_PUSH_ALLOW"):
        AddressFilter().check_host(host)
    AddressFilter(("*",)).check_host(host)


@pytest.mark.parametrize("host", ["shop.example", "mylocalhost", "localhost.example", "shop-localhost.example"])
def test_a_name_says_nothing_when_it_is_given(host: str) -> None:
    AddressFilter().check_host(host)


# ------------------------------------------------------------------------------------------------------- connections


@pytest.fixture
async def server() -> AsyncIterator[tuple[int, list[str]]]:
    """Port of a server on this machine, and what was asked of it."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        except asyncio.IncompleteReadError:
            asked.append("")

    async with served(serve) as port:
        yield port, asked


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """Have every name resolve to the addresses of the next answer, of which the last one repeats."""
    left = [answer.split() for answer in answers]

    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        addresses = left.pop(0) if len(left) > 1 else left[0]
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("emq_push.http.build_resolver", FairResolver)


async def reason(url: str, addresses: AddressFilter | None = None) -> str:
    """Return why a delivery to the URL failed; empty if it did not."""
    endpoint = Endpoint("t", yarl.URL(url, encoded=True), timeout_s=2.0)
    async with Pusher({"t": endpoint}.get, addresses=addresses) as push:
        try:
            await push(Message("id1", b"{}", topic="t"))
        except errors.Retry as exc:
            return exc.reason
    return ""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::ffff:127.0.0.1]"])
async def test_no_way_of_writing_this_machines_address_connects(host: str, server: tuple[int, list[str]]) -> None:
    port, asked = server
    assert await reason(f"http://{host}:{port}/") != ""
    assert not asked


async def test_a_name_that_leads_to_this_machine_does_not_connect(
    server: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, asked = server
    resolving(monkeypatch, "127.0.0.1")
    assert await reason(f"http://shop.example:{port}/") == (
        "the loopback address 127.0.0.1 is not allowed; allow it with the setting push_allow"
    )
    resolving(monkeypatch, "::ffff:127.0.0.1 127.0.0.1")
    both = await reason(f"http://shop.example:{port}/")
    assert "is not allowed" in both
    assert "Errno" not in both
    assert not asked
    assert await reason(f"http://shop.example:{port}/", AddressFilter(("127.0.0.0/8",))) == ""
    assert len(asked) == 1


async def test_a_name_that_leads_elsewhere_than_it_did_does_not_connect(
    server: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, asked = server
    monkeypatch.setattr("emq_push.http.DNS_TTL_S", 0)
    resolving(monkeypatch, "8.8.8.8", "127.0.0.1")
    socket.getaddrinfo("shop.example", port)  # the check that a registration would make
    assert "is not allowed" in await reason(f"http://shop.example:{port}/")
    assert not asked


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (
            "http://shop.example:8443/",
            "an http URL is not allowed here (the setting push_https_only); give an https URL",
        ),
        ("https://shop.example:8080/", "port 8080 is not allowed; the setting push_ports allows 443, 8443"),
        ("https://shop.example/", ""),
        ("https://shop.example:8443/", ""),
    ],
)
def test_the_settings_limit_schemes_and_ports(url: str, reason: str) -> None:
    found = AddressFilter.of_settings(settings.load(environ={}, push_https_only=True, push_ports="443, 8443"))
    refusal = ""
    try:
        found.check_url(yarl.URL(url))
    except OSError as exc:
        refusal = str(exc)
    assert refusal == reason


async def test_a_forbidden_port_is_a_failure_with_its_reason(server: tuple[int, list[str]]) -> None:
    port, asked = server
    filtered = AddressFilter(("*",), ports=frozenset((1,)))
    assert await reason(f"http://127.0.0.1:{port}/", filtered) == (
        f"port {port} is not allowed; the setting push_ports allows 1"
    )
    assert not asked


@pytest.mark.parametrize("ports", ["0", "65536", "http", "44 3x", "-1"])
def test_ports_that_are_none_are_refused(ports: str) -> None:
    with pytest.raises(errors.InvalidSettings, match="push_ports has"):
        AddressFilter.of_settings(settings.load(environ={}, push_ports=ports))

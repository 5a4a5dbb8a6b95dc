"""Who may do what on a ZooKeeper: access lists, passwords and certificates."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import emq_servers as servers
from emq.runtime import errors
from support.secured_zookeeper import SecuredZooKeeper
from support.tree_watcher import TreeWatcher

_numbers = itertools.count()


@pytest.fixture
def chroot() -> str:
    return f"/access-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def server(zookeeper_server: servers.ZooKeeperServer) -> servers.ZooKeeperServer:
    return zookeeper_server


@pytest.fixture
def client_certificate(tmp_path: Path) -> dict[str, str]:
    """Settings with a certificate that no authority signed."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=host"]
    subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return {"cluster_cert": str(certificate), "cluster_key": str(key)}


async def test_clusters_on_one_ensemble_share_nothing_but_what_is_above_them(
    watch: Callable[..., TreeWatcher], zookeeper_ensemble: servers.Ensemble, chroot: str
) -> None:
    place = zookeeper_ensemble.url.replace("://", "://{}@") + chroot
    one = await watch(place.format("one:1") + "/one/deep").open()
    two = await watch(place.format("two:2") + "/two").open()
    await one.create("/a", b"one")
    await two.create("/a", b"two")
    assert [node.data for node in (await one.read("/a"), await two.read("/a")) if node] == [b"one", b"two"]
    assert await one.children("/") == ["a"]


async def test_wrong_credentials_end_open_and_what_is_there_stays_closed(
    watch: Callable[..., TreeWatcher], server: servers.ZooKeeperServer, chroot: str
) -> None:
    place = f"127.0.0.1:{server.port}{chroot}"
    owner = await watch(f"zookeeper://me:right@{place}").open()
    await owner.create("/a/b", b"mine")
    for stranger in ("me:wrong@", "you:right@", ""):
        with pytest.raises(errors.InvalidSettings, match=r"may not .*correct `cluster`") as refused:
            await watch(f"zookeeper://{stranger}{place}").open()
        assert "wrong" not in str(refused.value)
        assert "right" not in str(refused.value)
    above = await watch(f"zookeeper://127.0.0.1:{server.port}").open()
    for trespass in (
        above.read(f"{chroot}/a/b"),
        above.children(chroot),
        above.write(f"{chroot}/a", b"", -1),
        above.create(f"{chroot}/c"),
        above.delete(f"{chroot}/a/b"),
    ):
        with pytest.raises(errors.ForeignTree, match=f"may not .* {chroot}"):
            await trespass
    assert (await owner.read("/a/b") or [b""])[0] == b"mine"


async def test_sasl_lets_in_who_knows_the_password_and_ends_open_for_others(
    watch: Callable[..., TreeWatcher], server: object, tmp_path: Path
) -> None:
    pytest.importorskip("puresasl")
    jaas = tmp_path / "jaas.conf"
    login = "org.apache.zookeeper.server.auth.DigestLoginModule"
    jaas.write_text(f'Server {{ {login} required user_me="right" user_you="too"; }};\n')
    provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    options = (f"-Djava.security.auth.login.config={jaas}",)
    with SecuredZooKeeper(config={"authProvider.1": provider}, java_options=options).started() as secured:
        place = f"127.0.0.1:{secured.port}/x"
        one = await watch(f"zookeeper://me:right@{place}", cluster_auth="sasl").open()
        await one.create("/a", b"mine")
        with pytest.raises(errors.InvalidSettings, match="refused user and password"):
            await watch(f"zookeeper://me:wrong@{place}", cluster_auth="sasl").open()
        with pytest.raises(errors.InvalidSettings, match="user 'you' may not"):
            await watch(f"zookeeper://you:too@{place}", cluster_auth="sasl").open()
        assert (await one.read("/a") or [b""])[0] == b"mine"


async def test_tls_needs_a_certificate_that_is_trusted_on_either_side(
    watch: Callable[..., TreeWatcher], server: object, client_certificate: dict[str, str], tmp_path: Path
) -> None:
    certificate = client_certificate["cluster_cert"]
    trust = {"ssl.clientAuth": "need", "ssl.trustStore.location": certificate}
    with SecuredZooKeeper(tmp_path / "server", tls=True, config=trust).started() as secured:
        url, known = f"{secured.secure_url}/x", {"cluster_ca": str(secured.certificate)}
        one = await watch(url, **known, **client_certificate).open()
        await asyncio.gather(*(one.create(f"/n{number}", bytes(1000)) for number in range(100)))
        assert len(await one.children("/")) == 100
        with pytest.raises(errors.InvalidSettings, match=r"(?i)certificate.*correct cluster_ca"):
            await watch(url, **client_certificate).open()
        with pytest.raises(errors.InvalidSettings, match=r"(?i)certificate.*correct cluster_ca"):
            await watch(url, **known).open()

"""Cluster URLs are taken apart as written, what is wrong is named, and a password is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from emq.allocation import zookeeper
from emq.runtime import errors, settings


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("zookeeper://a", zookeeper.Address(("a:2181",))),
        ("zookeeper://a:1,b.example.org,c_1:65535/", zookeeper.Address(("a:1", "b.example.org:2181", "c_1:65535"))),
        ("zookeeper://[::1],[fe80::2]:99/x/y/", zookeeper.Address(("[::1]:2181", "[fe80::2]:99"), "/x/y")),
        ("zookeeper://me:s%40%2F%3A%25@a/x%20y", zookeeper.Address(("a:2181",), "/x y", "me", "s@/:%")),
        ("zookeepers://a", zookeeper.Address(("a:2181",), tls=True)),
    ],
)
def test_a_url_is_taken_apart(url: str, expected: zookeeper.Address) -> None:
    assert zookeeper.parse(url) == expected


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis://a", "must begin with zookeeper://"),
        ("zookeeper:/a", "must begin with zookeeper://"),
        ("zookeeper://", "server ''"),
        ("zookeeper://a,,b", "server ''"),
        ("zookeeper://a b", "server 'a b'"),
        ("zookeeper://a..b", "server 'a..b'"),
        ("zookeeper://" + "a" * 64, "server 'aaa"),
        ("zookeeper://::1", "server '::1'"),
        ("zookeeper://[::1", "server"),
        ("zookeeper://[1.2.3.4]", "server"),
        ("zookeeper://a:", "port must be from 1 to 65535"),
        ("zookeeper://a:0", "'a:0'; its port must be"),
        ("zookeeper://a:65536", "'a:65536'; its port must be"),
        ("zookeeper://a:x", "'a:x'; its port must be"),
        ("zookeeper://[::1]2181", "its port must be"),
        ("zookeeper://a//b", "chroot '//b'"),
        ("zookeeper://a/b/../c", "chroot"),
        ("zookeeper://a/b%00", "chroot"),
        ("zookeeper://a/zookeeper/x", "/zookeeper is ZooKeeper's own"),
        ("zookeeper://a?x=1", "none is expected"),
        ("zookeeper://me@a", "USER:PASSWORD"),
        ("zookeeper://me:@a", "USER:PASSWORD"),
        ("zookeeper://:pw@a", "USER:PASSWORD"),
        ("zookeeper://m%3Ae:pw@a", "no colon"),
    ],
)
def test_what_is_wrong_is_named(url: str, named: str) -> None:
    with pytest.raises(errors.InvalidSettings) as refused:
        zookeeper.parse(url)
    assert named in str(refused.value)


@pytest.mark.parametrize("password", ["secret", "se/secret", "se@secret", "se:secret", "se?secret", "se#secret"])
@pytest.mark.parametrize("end", ["a", "a:x", "a,", "a//", "a?x"])
def test_a_password_is_never_shown(password: str, end: str) -> None:
    try:
        shown = repr(zookeeper.parse(f"zookeeper://me:{password}@{end}"))
    except errors.InvalidSettings as refused:
        shown = str(refused) + repr(refused.__cause__)
    assert "secret" not in shown


def test_tls_files_without_tls_are_refused_rather_than_ignored() -> None:
    with pytest.raises(errors.InvalidSettings, match=r"cluster_ca '/x' is for TLS; .*zookeepers://"):
        zookeeper.tree_of(settings.Settings(cluster="zookeeper://a", cluster_ca="/x"))


def test_a_tls_file_that_is_none_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("not a certificate")
    for name in ("cluster_ca", "cluster_cert"):
        for path in (bad, tmp_path / "missing.pem"):
            with pytest.raises(errors.InvalidSettings, match=f"{name} '{path}'"):
                zookeeper.tree_of(settings.Settings(cluster="zookeepers://a", **{name: str(path)}))
    with pytest.raises(errors.InvalidSettings, match=r"cluster_key .* needs its certificate"):
        zookeeper.tree_of(settings.Settings(cluster="zookeepers://a", cluster_key=str(bad)))


def test_sasl_without_a_user_is_refused() -> None:
    with pytest.raises(errors.InvalidSettings, match="USER:PASSWORD@"):
        zookeeper.tree_of(settings.Settings(cluster="zookeeper://a", cluster_auth="sasl"))

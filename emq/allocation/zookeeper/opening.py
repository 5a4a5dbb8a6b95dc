"""Makes a tree from the settings: our identity for the ensemble, and the rights of others on our nodes."""

from __future__ import annotations

import importlib.util
import ssl
from typing import Any

from kazoo import security

from emq.allocation.zookeeper.client import ZooKeeperTree
from emq.allocation.zookeeper.cluster_url import Address, parse
from emq.allocation.zookeeper.kazoo_client import Access
from emq.runtime import errors, extras
from emq.runtime.settings import Settings


def tree_of(settings: Settings, *, create: bool = True) -> ZooKeeperTree:
    """Return the tree that the setting `cluster` names, not open yet.

    With a user, only this user may read or change the nodes from the chroot on. Above the chroot others may look and
    create, so that several clusters find room on one ensemble.

    Args:
        create: create the chroot if it is missing.

    Raises:
        InvalidSettings: the URL, a file of `cluster_ca`, `cluster_cert` or `cluster_key`, or `cluster_auth` is wrong.
    """
    address = parse(settings.cluster)
    return ZooKeeperTree(address, _access(address, settings), settings.session_timeout_s, create=create)


def _access(address: Address, settings: Settings) -> Access:
    tls = _tls(address, settings)
    if settings.cluster_auth == "sasl":
        sasl = _sasl(address)
        own = [security.make_acl("sasl", address.user, all=True)]
        return Access(own_acl=own, shared_acl=_with_room(own), sasl=sasl, tls=tls)
    if not address.user:
        return Access(own_acl=security.OPEN_ACL_UNSAFE, shared_acl=security.OPEN_ACL_UNSAFE, tls=tls)
    own = [security.make_digest_acl(address.user, address.password, all=True)]
    digest = [("digest", f"{address.user}:{address.password}")]
    return Access(own_acl=own, shared_acl=_with_room(own), digest=digest, tls=tls)


def _with_room(own: list[Any]) -> list[Any]:
    return [*own, security.make_acl("world", "anyone", read=True, create=True)]


def _sasl(address: Address) -> dict[str, str]:
    if not address.user:
        raise errors.InvalidSettings("cluster_auth 'sasl' needs a user; write USER:PASSWORD@ in `cluster`")
    if importlib.util.find_spec("puresasl") is None:
        raise errors.InvalidSettings(f"cluster_auth 'sasl' needs the package pure-sasl; {extras.remedy('sasl')}")
    return {"mechanism": "DIGEST-MD5", "username": address.user, "password": address.password}


def _tls(address: Address, settings: Settings) -> ssl.SSLContext | None:
    if not address.tls:
        for name in ("cluster_ca", "cluster_cert", "cluster_key"):
            if value := getattr(settings, name):
                raise errors.InvalidSettings(f"{name} {value!r} is for TLS; begin `cluster` with zookeepers://")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if settings.cluster_ca:
            context.load_verify_locations(settings.cluster_ca)
        else:
            context.load_default_certs()
    except OSError as exc:
        raise errors.InvalidSettings(f"cluster_ca {settings.cluster_ca!r} must be a PEM file: {exc}") from exc
    if settings.cluster_key and not settings.cluster_cert:
        raise errors.InvalidSettings(f"cluster_key {settings.cluster_key!r} needs its certificate in cluster_cert")
    try:
        if settings.cluster_cert:
            # Without a password of its own, an encrypted key would make the process ask for one on its terminal.
            context.load_cert_chain(settings.cluster_cert, settings.cluster_key or None, password="")
    except OSError as exc:
        files = f"cluster_cert {settings.cluster_cert!r} and cluster_key {settings.cluster_key!r}"
        raise errors.InvalidSettings(
            f"{files} must be PEM files that belong together, the key unencrypted: {exc}"
        ) from exc
    return context

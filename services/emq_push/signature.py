"""Signatures of deliveries, by Standard Webhooks 1.0 (https://www.standardwebhooks.com).

A signature covers the message's id, the time of the attempt, and the payload, joined by dots. A receiver that checks
the signature and the time knows that the delivery comes from this sender, is unchanged, and is not an old one sent
again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from emq.runtime import extras, plurals

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SYMMETRIC = "whsec_"
"""Prefix of a secret that sender and receiver share (HMAC-SHA256, `v1`)."""
ASYMMETRIC = "whsk_"
"""Prefix of a private key whose public key the receiver has (ed25519, `v1a`)."""
PUBLIC = "whpk_"
"""Prefix of a public key, as receivers write it."""
NEW_BYTES = 32
"""Length of a new secret."""

Kind = Literal["hmac", "ed25519"]

LEAST_BYTES, MOST_BYTES = 24, 64
"""Length of a shared secret, as the specification has it."""
KEY_BYTES = (32, 64)
"""Length of a private key: its seed, or seed and public key together, as some tools write them."""
MOST_SECRETS = 4

Sign = Callable[[bytes], str]
"""Signs bytes; returns the signature with its version, such as `v1,K5oZ...`."""


def signers(secrets: str) -> Sequence[Sign]:
    """Return what signs with each secret; the texts are separated by spaces.

    With two secrets each delivery has two signatures, and a receiver may check either one. So a secret is replaced
    without a gap: add the new one, wait until all receivers know it, and take the old one away.

    Raises:
        ValueError: a secret is not one; the text says why, and does not show the secret.
    """
    found = [_signer(text) for text in secrets.split()]
    if not 1 <= len(found) <= MOST_SECRETS:
        raise ValueError(f"push.secret must have 1 to {MOST_SECRETS} secrets, separated by spaces")
    return found


def new_secret(kind: Kind) -> str:
    """Return a random secret. Raises `ValueError`: the package for ed25519 is missing."""
    if kind == "ed25519":
        _ed25519()
    return (SYMMETRIC if kind == "hmac" else ASYMMETRIC) + _encoded(os.urandom(NEW_BYTES))


def kind_of(secrets: str) -> Kind | None:
    """Return the kind of the first of some secrets, which is the newest; None if there is none."""
    if secrets.startswith(ASYMMETRIC):
        return "ed25519"
    return "hmac" if secrets else None


def without_prefix(secret: str) -> str:
    """Return the part of a secret that nobody may see."""
    return secret.removeprefix(SYMMETRIC).removeprefix(ASYMMETRIC)


def public_key(secrets: str) -> str:
    """Return the public key of the first of some secrets; empty if it is shared, or there is none.

    Raises:
        ValueError: the secret is not one, or the package for ed25519 is missing.
    """
    if kind_of(secrets) != "ed25519":
        return ""
    return PUBLIC + _encoded(_private(secrets.split()[0]).public_key().public_bytes_raw())


def signature(signers: Sequence[Sign], id_: str, timestamp_s: int, payload: bytes) -> str:
    """Return the value of `webhook-signature`.

    Args:
        id_: the value of `webhook-id`, as sent.
        timestamp_s: the value of `webhook-timestamp`.
    """
    content = b"%s.%d.%s" % (id_.encode(), timestamp_s, payload)
    return " ".join([sign(content) for sign in signers])


def _signer(secret: str) -> Sign:
    if secret.startswith(SYMMETRIC):
        key = _decoded(secret.removeprefix(SYMMETRIC))
        if not LEAST_BYTES <= len(key) <= MOST_BYTES:
            raise ValueError(
                f"push.secret has a secret of {plurals.count(len(key), 'byte')}; give {SYMMETRIC} and base64 of "
                f"{LEAST_BYTES} to {MOST_BYTES} random bytes"
            )
        return _shared(key)
    if secret.startswith(ASYMMETRIC):
        private = _private(secret)
        return lambda content: "v1a," + _encoded(private.sign(content))
    raise ValueError(f"push.secret has a secret that begins with neither {SYMMETRIC} nor {ASYMMETRIC}")


def _private(secret: str) -> Ed25519PrivateKey:
    key = _decoded(secret.removeprefix(ASYMMETRIC))
    if len(key) not in KEY_BYTES:
        raise ValueError(
            f"push.secret has a key of {plurals.count(len(key), 'byte')}; an ed25519 key has {KEY_BYTES[0]}"
        )
    return _ed25519().from_private_bytes(key[: KEY_BYTES[0]])


def _ed25519() -> type[Ed25519PrivateKey]:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise ValueError(f"push.secret has an ed25519 key, which needs: {extras.remedy('ed25519')}") from None
    return Ed25519PrivateKey


def _shared(key: bytes) -> Sign:
    """Return what signs with a shared key. The key is hashed here, once, and not for each signature."""
    keyed = hmac.new(key, digestmod=hashlib.sha256)

    def sign(content: bytes) -> str:
        found = keyed.copy()
        found.update(content)
        return "v1," + _encoded(found.digest())

    return sign


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:  # also for letters outside ASCII
        raise ValueError("push.secret has a secret that is not base64") from None


def _encoded(found: bytes) -> str:
    return base64.b64encode(found).decode()

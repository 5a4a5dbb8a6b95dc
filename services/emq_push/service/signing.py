"""Secrets of an endpoint's signatures: new ones, those of another kind, and for a while two at once."""

from __future__ import annotations

from typing import NamedTuple

from emq.runtime import extras
from emq_push import signature
from emq_push.secrets import PREFIX, is_encrypted
from emq_push.service.refusals import Invalid
from emq_push.signature import Kind


class Signing(NamedTuple):
    """Attributes:
    secrets: of the signatures, the newest first, with spaces between them.
    old_until_us: when the secret before the newest ends, 0 if there is none; None to keep that time as it is.
    made: the new secret among them; empty if there is none.
    """

    secrets: str
    old_until_us: int | None = None
    made: str = ""


class Rotation:
    """Replaces the secret of an endpoint. Where the change begins again, the new secret is the same one.

    Args:
        until_us: until then, deliveries are signed with the old secret, too; 0 for not at all.
        kind: of the new secret; None for the kind of the old one.
        always: False to keep the secret if it has that kind already.
        given: the new secret; empty to make one.
    """

    def __init__(self, until_us: int, kind: Kind | None = None, *, always: bool = True, given: str = "") -> None:
        self._given = given
        self._until_us = until_us
        self._kind = kind
        self._always = always
        self._made: dict[Kind, str] = {}

    def __call__(self, now: str) -> Signing:
        """Return what follows on the secrets that there are now.

        Raises:
            Invalid: the given secret cannot be one, or ed25519 lacks its package.
        """
        _check(self._given, self._kind)
        there = signature.kind_of(now)
        if now.split()[:1] == [self._given] if self._given else not self._always and there == self._kind:
            return Signing(now) if self._until_us else Signing(now.partition(" ")[0], 0)
        secret = self._given or self._new(self._kind or there or "hmac")
        before = [each for each in now.split() if each != secret]
        is_both = bool(self._until_us and before)
        secrets = f"{secret} {before[0]}" if is_both else secret
        return Signing(secrets, self._until_us if is_both else 0, "" if self._given else secret)

    def _new(self, kind: Kind) -> str:
        if kind not in self._made:
            self._made[kind] = new_secret(kind)
        return self._made[kind]


def first(given: str, kind: Kind, former: str = "") -> Signing:
    """Return the first secrets of an endpoint: the given one, or a new one, and an older one. Raises `Invalid`."""
    _check(given, None if kind == "hmac" else kind)  # "hmac" is also the kind if the caller asked for none
    _check(former, None)
    newest = given or new_secret(kind)
    return Signing(f"{newest} {former}".rstrip(), made="" if given else newest)


def _check(given: str, kind: Kind | None) -> None:
    """Raise `Invalid` if a given secret is not a single one of the kind asked for, or looks like an encrypted one."""
    text = ""
    if given and given.split() != [given]:
        text = "the secret has white space; give a single one"
    elif is_encrypted(given):
        text = f"the secret begins with {PREFIX}, as only what EMQ has encrypted does; give another one"
    elif given and kind == "ed25519" and signature.kind_of(given) != kind:
        text = f"the secret is not a private key of ed25519, which begins with {signature.ASYMMETRIC}"
    elif given and kind == "hmac" and signature.kind_of(given) != kind:
        text = "the secret is a private key; leave signature out, or give ed25519"
    if text:
        raise Invalid("invalid_request", text, "/secret")


def new_secret(kind: Kind) -> str:
    """Return a secret by Standard Webhooks. Raises `Invalid`: ed25519 lacks its package."""
    try:
        return signature.new_secret(kind)
    except ValueError as exc:
        text = (
            f"this service lacks the package for ed25519; use hmac, or ask its operator for: {extras.remedy('ed25519')}"
        )
        raise Invalid("invalid_request", text, "/signature") from exc


def shown(secret: str) -> str:
    """Return a new secret as its maker gets it: nothing of ed25519, whose private key only hosts need."""
    return secret if signature.kind_of(secret) == "hmac" else ""

"""Encrypts the stored secrets of endpoints.

With the setting `secret_key`, the catalog holds the secrets of endpoints as `enc:v1:<key>:<text>`: AES-256-GCM under a
random nonce, in base64. `<key>` is the begin of the key's SHA-256, which tells several keys apart. So nobody can read a
secret in the database, or in a backup, without the key. To change the key, put the new one before the old one: EMQ
encrypts with the first and decrypts with any. Once all secrets were written again, remove the old one.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emq import Settings
from emq.runtime import errors, extras
from emq.topics.secret_names import is_secret

if TYPE_CHECKING:
    from emq.topics.catalog import Catalog
    from emq.topics.model import Topic

PREFIX = "enc:v1:"
KEY_BYTES = 32
NONCE_BYTES = 12
_NAME_CHARACTERS = 8
_REMEDY = "make one with: openssl rand -base64 32"


class LacksKey(ValueError):
    """This process lacks the key of a secret; give it the key with the setting `secret_key`."""


class Secrets:
    """Encrypts and decrypts the secrets of endpoints. Without a key, secrets stay as they are.

    Args:
        keys: of 32 bytes each; the first encrypts.

    Raises:
        InvalidSettings: a key has another length, or the package `cryptography` is missing.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        for key in keys:
            if len(key) != KEY_BYTES:
                raise errors.InvalidSettings(
                    f"settings: secret_key has a key of {len(key)} bytes; give base64 of {KEY_BYTES} bytes; {_REMEDY}"
                )
        self._ciphers = {}
        if keys:
            try:
                from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            except ImportError:
                raise errors.InvalidSettings(
                    f"settings: secret_key needs the package cryptography: {extras.remedy('secrets')}"
                ) from None
            self._ciphers = {_name(key): AESGCM(key) for key in keys}

    @classmethod
    def of_setting(cls, settings: Settings) -> Secrets:
        """Return the secrets under the keys of the settings `secret_key` and `secret_key_file`.

        Raises:
            InvalidSettings: the file cannot be read, or a key is none.
        """
        text = settings.secret_key
        if settings.secret_key_file:
            try:
                text = f"{text} {Path(settings.secret_key_file).read_text()}"
            except (OSError, UnicodeDecodeError) as exc:
                why = exc.strerror if isinstance(exc, OSError) else "it is not text"
                raise errors.InvalidSettings(
                    f"settings: secret_key_file {settings.secret_key_file!r} cannot be read: {why}"
                ) from exc
        return cls([_key(part) for part in text.replace(",", " ").split()])

    @property
    def encrypts(self) -> bool:
        """True if there is a key."""
        return bool(self._ciphers)

    def encrypt(self, text: str) -> str:
        """Return the encrypted text; the text itself without a key, or if it is encrypted already."""
        if not self._ciphers or is_encrypted(text):
            return text
        name, cipher = next(iter(self._ciphers.items()))
        nonce = os.urandom(NONCE_BYTES)
        sealed = nonce + cipher.encrypt(nonce, text.encode(), PREFIX.encode())
        return f"{PREFIX}{name}:{base64.b64encode(sealed).decode()}"

    def decrypt(self, text: str) -> str:
        """Return the secret in a kept text, which may be plain.

        Raises:
            LacksKey: this process lacks the key.
            ValueError: the text was changed; the error does not show the text.
        """
        if not is_encrypted(text):
            return text
        from cryptography.exceptions import InvalidTag

        name, _, sealed = text.removeprefix(PREFIX).partition(":")
        cipher = self._ciphers.get(name)
        if cipher is None:
            lacking = "another key" if self._ciphers else "a key"
            raise LacksKey(f"is encrypted with {lacking} ({name[:_NAME_CHARACTERS]!r}); set secret_key on this host")
        try:
            body = base64.b64decode(sealed, validate=True)
            return cipher.decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], PREFIX.encode()).decode()
        except (ValueError, InvalidTag):
            raise ValueError("cannot be decrypted: it was changed since it was encrypted; set it again") from None

    def is_current(self, text: str) -> bool:
        """Return True if the text is kept as `encrypt` would keep it now: under the first key, or plain without one."""
        if not self._ciphers:
            return not is_encrypted(text)
        return text.startswith(f"{PREFIX}{next(iter(self._ciphers))}:")


def is_encrypted(text: str) -> bool:
    return text.startswith(PREFIX)


def _name(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:_NAME_CHARACTERS]


def _key(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise errors.InvalidSettings(f"settings: secret_key has a key that is not base64; {_REMEDY}") from None


async def reencrypt(catalog: Catalog, name: str, secrets: Secrets) -> int:
    """Keep each secret of a topic under the first key. Safe to repeat, and while others change the topic.

    Args:
        secrets: with a key; it also decrypts with older ones.

    Returns:
        The number of secrets that were kept otherwise: plain, or under another key.

    Raises:
        ValueError: a secret is encrypted with a key that is not at hand; the text names the attribute.
        UnknownTopic: there is no such topic.
    """
    topic, count = await catalog.get(name), 0
    while changes := _changes(topic, secrets):
        before = {attribute: topic.options.attributes[attribute] for attribute in changes}
        topic = await catalog.set_attributes(name, changes, before)  # changes nothing if a secret is another by now
        if all(topic.options.attributes.get(attribute) == value for attribute, value in changes.items()):
            count += len(changes)
    return count


def _changes(topic: Topic, secrets: Secrets) -> dict[str, str]:
    changes = {}
    for name, value in topic.options.attributes.items():
        if value and is_secret(name) and not secrets.is_current(value):
            try:
                changes[name] = secrets.encrypt(secrets.decrypt(value))
            except ValueError as exc:
                raise ValueError(f"{name} {exc}") from None
    return changes

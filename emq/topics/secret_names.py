"""The names of the attributes of topics that hold secrets."""

from __future__ import annotations

from collections.abc import Mapping

MASK = "***"
"""Stands for a secret where a topic is shown. In an import it stands for the secret that the topic has already."""

_PREFIXES = ("push.headers.", "push.secret")
_NAMES = ("push.basic", "push.oauth2.secret", "push.tls.key")


def is_secret(name: str) -> bool:
    """Return True if the attribute of this name holds a secret."""
    return name in _NAMES or name.startswith(_PREFIXES)


def masked(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return attributes as they may be shown."""
    return {name: MASK if is_secret(name) and value else value for name, value in attributes.items()}

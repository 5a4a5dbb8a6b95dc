"""The names of the attributes of topics that hold secrets."""

from __future__ import annotations

from collections.abc import Mapping

from emq.runtime import extending

MASK = "***"
"""Stands for a secret where a topic is shown. In an import it stands for the secret that the topic has already."""


def is_secret(name: str) -> bool:
    """Return True if the attribute of this name holds a secret."""
    return any(extension.is_secret(name) for extension in extending.extensions())


def masked(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return attributes as they may be shown."""
    return {name: MASK if is_secret(name) and value else value for name, value in attributes.items()}

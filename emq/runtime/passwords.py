"""Passwords in URLs, hidden before a URL is shown."""

from __future__ import annotations

import re

_SECRET_PARAMETER = re.compile(r"(?i)([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*")


def hide_password(url: str) -> str:
    """Return the URL with its password, and parameters that look like one, as `***`; for messages and logs.

    This also hides a password with unescaped `@`, `/` or `?` (everything up to the last `@` counts as user and
    password), and the password of a URL without a scheme.
    """
    before, mark, rest = url.partition("://")
    if not mark:
        before, rest = "", url
    if "@" in rest:
        account, _, place = rest.rpartition("@")
        user, colon, _ = account.partition(":")
        rest = f"{user}{colon}***@{place}" if colon else rest
    return _SECRET_PARAMETER.sub(r"\1***", before + mark + rest)

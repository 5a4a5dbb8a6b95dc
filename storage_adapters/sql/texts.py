"""Text that comes from outside, as both databases keep it.

PostgreSQL refuses a NUL in text, and SQLite loses what comes behind one in JSON. So a NUL is stored as `\\x01\\x01` and
a `\\x01` as `\\x01\\x02`, which keeps the order of texts. Text without either, which is nearly all, is stored as it is.
"""

from __future__ import annotations

_STORED = str.maketrans({"\x00": "\x01\x01", "\x01": "\x01\x02"})


def stored(text: str) -> str:
    """The text for the database; see `restored`."""
    return text.translate(_STORED) if "\x00" in text or "\x01" in text else text


def well_formed(text: str) -> str:
    """The text with `?` for each half of a character, which no database takes."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def restored(text: str) -> str:
    """The text that was given to `stored`."""
    if "\x01" not in text:
        return text
    return text.replace("\x01\x01", "\x00").replace("\x01\x02", "\x01")

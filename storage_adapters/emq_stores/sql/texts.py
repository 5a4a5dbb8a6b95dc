"""Text from users and other programs, in a form that both databases keep.

PostgreSQL refuses a NUL in text, and SQLite loses the text behind a NUL in JSON. So a NUL is stored as `\\x01\\x01` and
a `\\x01` as `\\x01\\x02`, which keeps the order of texts. Nearly all text has neither and is stored as it is.
"""

from __future__ import annotations

_STORED = str.maketrans({"\x00": "\x01\x01", "\x01": "\x01\x02"})


def stored(text: str) -> str:
    """Return the text in its form for the database; `restored` undoes this."""
    return text.translate(_STORED) if "\x00" in text or "\x01" in text else text


def well_formed(text: str) -> str:
    """Return the text with `?` for each lone surrogate (half of a character), which no database takes."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def restored(text: str) -> str:
    """Return the text that was given to `stored`."""
    if "\x01" not in text:
        return text
    return text.replace("\x01\x01", "\x00").replace("\x01\x02", "\x01")

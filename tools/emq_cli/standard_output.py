"""Standard output that writes everything, also without Python's buffer."""

from __future__ import annotations

import io
from typing import TextIO


class _Writer(io.BufferedWriter):
    """Leaves the file open when it goes, since the file belongs to the stream that it replaces."""

    def close(self) -> None:
        self.flush()


def whole(stream: TextIO) -> TextIO:
    """Return a stream in place of `sys.stdout` that repeats a write until everything is written.

    With PYTHONUNBUFFERED=1, as in many containers, Python hands each text to the file in one system call. If a signal
    cuts that call short, Python drops the rest without an error. A buffered stream is returned as it is. The replaced
    stream must stay open, as `sys.__stdout__` does.
    """
    raw = getattr(stream, "buffer", None)
    if not isinstance(raw, io.RawIOBase):
        return stream
    return io.TextIOWrapper(_Writer(raw), stream.encoding, stream.errors, line_buffering=True, write_through=True)

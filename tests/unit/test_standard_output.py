"""Standard output that is not buffered and takes a part of each write, as a pipe does when a signal comes."""

from __future__ import annotations

import io

from emq_cli import standard_output


class Partial(io.RawIOBase):
    def __init__(self) -> None:
        self.taken = b""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        some = bytes(memoryview(data)[:1000])  # type: ignore[arg-type]
        self.taken += some
        return len(some)


def unbuffered(raw: Partial) -> io.TextIOWrapper:
    return io.TextIOWrapper(raw, encoding="utf-8", write_through=True)  # type: ignore[type-var]


def test_everything_is_written() -> None:
    original = unbuffered(raw := Partial())
    stream = standard_output.whole(original)
    stream.write("x" * 5000 + "\n")
    stream.buffer.write(b"y" * 5000)
    stream.flush()
    assert raw.taken == b"x" * 5000 + b"\n" + b"y" * 5000


def test_buffered_output_stays_as_it_is() -> None:
    stream = io.TextIOWrapper(io.BytesIO())
    assert standard_output.whole(stream) is stream

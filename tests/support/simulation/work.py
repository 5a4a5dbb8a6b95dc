"""The work that a simulated message asks of its handler; it is the message's payload."""

from __future__ import annotations

from typing import NamedTuple


class Work(NamedTuple):
    """Attributes:
    name: unique, `<topic>#<number>`; numbers are in the order of publishing.
    fails: so many attempts fail.
    takes_ms: how long the handler waits.
    key: of the message.
    """

    name: str
    fails: int = 0
    takes_ms: int = 0
    key: str = ""

    @property
    def topic(self) -> str:
        return self.name.partition("#")[0]

    @property
    def number(self) -> int:
        return int(self.name.partition("#")[2])

    def payload(self) -> bytes:
        return f"{self.name}|{self.fails}|{self.takes_ms}|{self.key}".encode()

    @classmethod
    def parse(cls, payload: bytes) -> Work:
        name, fails, takes_ms, key = payload.decode().split("|")
        return cls(name, int(fails), int(takes_ms), key)

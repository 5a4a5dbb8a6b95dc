"""The source of a process's metrics and health."""

from __future__ import annotations

from typing import Protocol

from emq.database import Database
from emq.host.host import Host
from emq.producer import Producer
from emq.settings import Settings


class Watched(Protocol):
    """The part of an app that metrics and health checks read.

    Attributes:
        settings: its settings.
        host: its host, if it ever became one.
    """

    settings: Settings
    host: Host | None

    @property
    def waits_for(self) -> str | None: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def database(self) -> Database: ...

    @property
    def producer(self) -> Producer: ...

    def host_name(self) -> str: ...

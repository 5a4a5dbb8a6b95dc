"""The app that is observed, as far as observers look at it."""

from __future__ import annotations

from typing import Protocol

from emq.database import Database
from emq.host.host import Host
from emq.offsets.checkpoints import CheckpointStore
from emq.producer import Producer
from emq.runtime.clock import Clock
from emq.runtime.settings import Settings
from emq.storage.store import Store
from emq.topics.catalog import Catalog


class Opened(Protocol):
    """The parts of an `emq.App` from which snapshots, traces, metrics and health checks are read.

    Attributes:
        settings: its settings.
        host: its host, if it ever became one.
    """

    settings: Settings
    host: Host | None

    @property
    def clock(self) -> Clock: ...
    @property
    def waits_for(self) -> str | None: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def database(self) -> Database: ...
    @property
    def store(self) -> Store: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def checkpoints(self) -> CheckpointStore: ...
    @property
    def producer(self) -> Producer: ...
    def host_name(self) -> str: ...

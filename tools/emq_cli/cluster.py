"""Shared parts of the commands on a cluster: its coordination tree, and the topics and hosts in the database."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from emq.allocation.plan.units import NO_UNITS, Units
from emq.allocation.tree.protocol import Tree
from emq.database import Database, environment_time
from emq.host.group_quotas import GroupQuotas
from emq.observe import snapshots
from emq.observe.snapshots import AgedSnapshot
from emq.runtime import errors
from emq.runtime.passwords import hide_password
from emq.runtime.settings import Settings
from emq.topics.catalog import Catalog
from emq.topics.model import Topic
from emq_cli import forecast
from emq_cli.bucket_contents import BucketContents
from emq_cli.session import Session
from emq_trace import cluster_view

ALONE = ("memory", "sqlite")
"""Schemes of stores from which one host alone consumes."""

NO_BUCKETS = BucketContents({})
NO_FAMILIES: Mapping[str, int] = MappingProxyType({})


class DatabaseView(NamedTuple):
    """The database's contents about a cluster.

    Attributes:
        topics: topics of the catalog.
        quotas: quota of each group of these topics; 0 below a budget.
        catalog: version of the catalog.
        hosts: latest snapshots of the hosts.
        trouble: reason why the database gave no answer; empty if it did.
        loads: load of each entry of the plan: the quota of a group of no family, or the sum of the quotas awake in a
            bucket now. The leader goes by what was awake in the last minutes.
        units: the unit of each topic that shares a budget, and no bucket.
        contents: the groups of these topics in each bucket.
        families: all families, with their numbers of buckets.
    """

    topics: list[Topic]
    quotas: dict[str, float]
    catalog: int
    hosts: list[AgedSnapshot]
    trouble: str = ""
    loads: Mapping[str, float] = MappingProxyType({})
    units: Units = NO_UNITS
    contents: BucketContents = NO_BUCKETS
    families: Mapping[str, int] = NO_FAMILIES

    @property
    def troubles(self) -> list[str]:
        """The trouble with the database and those of the live hosts, a line each."""
        return [*filter(None, [self.trouble]), *(text for seen in self.hosts for text in seen.troubles)]


def meet(settings: Settings) -> bool:
    """Return whether hosts of these settings meet, in ZooKeeper or in the database, or consume alone."""
    alone = settings.database_is_private or settings.store.partition(":")[0] in ALONE
    return bool(settings.cluster) or not alone


@contextlib.asynccontextmanager
async def tree_of(session: Session, timeout_s: float = cluster_view.OPEN_S) -> AsyncIterator[Tree]:
    """Open the coordination tree in which the hosts of these settings meet, for the length of a block.

    Raises:
        InvalidSettings: hosts of this store do not meet, or the cluster cannot be used.
        ClusterUnavailable: no server answered in time; the text names them, and what is wrong with each.
    """
    settings = session.settings
    if not meet(settings):
        raise errors.InvalidSettings(
            f"one host alone consumes from {hide_password(settings.store)!r}, so there is no cluster; give the --store "
            "and --database that several hosts share, or --cluster zookeeper://HOST:PORT"
        )
    servers = f"no ZooKeeper server of {hide_password(settings.cluster)}"
    if not settings.cluster:
        servers = f"no database at {hide_password(settings.database_url)}"
    with _reasons() as reasons:
        tree = cluster_view.opened(session.app().coordination(), servers, timeout_s)
        async with contextlib.AsyncExitStack() as stack:
            try:
                opened = await stack.enter_async_context(tree)
            except errors.ClusterUnavailable as exc:
                raise errors.ClusterUnavailable(f"{exc}{reasons.text}") from None
            yield opened


async def known(session: Session) -> DatabaseView:
    """Return the database's contents, or the reason of its failure: commands can show a cluster without it."""
    settings = session.settings
    try:
        database = await Database.open(settings.database_url, create=False)
        try:
            # The bound on group_qps, which a store may name, matters to who changes topics only.
            catalog = Catalog(database, settings.environment, None)
            found = await catalog.changes_since(0)  # the plan has none of those that sleep
            time_us = await database.run(
                lambda c: environment_time.now_us(c, database, settings.environment), read_only=True
            )
            hosts = await snapshots.load_from(database, settings.environment, time_us / 1e6)
        finally:
            await database.close()
    except (errors.DatabaseUnavailable, errors.InvalidSettings) as exc:  # the cluster can be seen without
        return DatabaseView([], {}, 0, [], f"quotas and rates are not known: {exc}")
    return await view_of(found.changed, found.families, found.version, hosts)


async def view_of(
    topics: Iterable[Topic],
    families: Mapping[str, int] = NO_FAMILIES,
    catalog: int = 1,
    hosts: Sequence[AgedSnapshot] = (),
) -> DatabaseView:
    """Return the view of these topics and families, with loads and units as each host computes them."""
    topics = sorted(topics, key=lambda topic: topic.name)
    placed = GroupQuotas({topic.name: topic for topic in topics})
    await placed.follow(topics, families)
    return DatabaseView(
        topics,
        forecast.quotas_of(topics),
        catalog,
        [*hosts],
        loads=placed.all() | placed.awake,
        units=placed.units(),
        contents=BucketContents({group: bucket for group, bucket in placed.moved.items() if bucket is not None}),
        families=families,
    )


class _Reasons(logging.Handler):
    """Keeps the last warning instead of printing it. Attributes: text: the warning, to be added to an error's text."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = f" ({record.getMessage().partition('; ')[2]})"


@contextlib.contextmanager
def _reasons() -> Iterator[_Reasons]:
    """Hold back the warnings of a command that connects; its error text gets the last of them."""
    log, handler = logging.getLogger("emq.allocation"), _Reasons(logging.WARNING)
    before, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield handler
    finally:
        log.removeHandler(handler)
        log.propagate = before

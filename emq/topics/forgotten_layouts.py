"""Mends topics whose catalog knows an older number of groups than the store: its database was restored from a copy.

Meanwhile the queues refuse all keys by the catalog's layout (`emq.topics.key_layouts`). The queues of groups that the
topic did not have for a time are sealed. And hosts hold messages of the newer layout back, since they wait for a
catalog that will never come. So whoever meets such a layout has the topic caught up: the producer that is refused, or
the host that holds a message back.
"""

from __future__ import annotations

import functools
import logging

from emq.storage.answers import served
from emq.storage.log_store import Trim
from emq.storage.store import Store
from emq.topics import changing
from emq.topics.catalog import Catalog

log = logging.getLogger(__name__)

QUEUES = 1_000
"""Most queues in one call of the store."""


async def catch_up(store: Store, catalog: Catalog, name: str, layout: int) -> None:
    """Give a topic a layout above `layout`, which the store has, unless its layout is as high as that by now.

    The queues of its groups are opened first: after a crash in between, the next refusal tells of the layout again.
    They stay sealed if the topic is being deleted, since a message published to it now would be lost with it. A
    deletion that is given up opens them.

    Raises:
        UnknownTopic: the topic was deleted meanwhile.
        DatabaseUnavailable, StoreUnavailable: try again later.
    """
    topic = await catalog.get(name)
    if topic.layout >= layout:
        return
    [first] = served(await store.lanes.inspect([topic.group(0)]))
    if not first.sealed:  # a deletion seals all lanes before the first queue
        queues = [queue for group in range(topic.active_groups) for queue in topic.queues(group)]
        for start in range(0, len(queues), QUEUES):
            part = queues[start : start + QUEUES]
            served(await store.log.trim([Trim(queue, 0, None, seal=False) for queue in part]))
    log.warning(
        "topic %s: the store knows a number of groups that the catalog does not know; was its database restored from "
        "an older copy? EMQ goes on with the catalog's",
        name,
    )
    await catalog.change(name, functools.partial(changing.caught_up, layout=layout))

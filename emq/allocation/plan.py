"""The plan: which host consumes which groups, by consistent hashing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import uhashring


def plan(groups: Iterable[str], hosts: Sequence[str]) -> dict[str, str]:
    """Assign each group to a host; deterministic in the sets given.

    The ring is built afresh each time, since one that was changed can keep routing to hosts that are gone.
    """
    if not hosts:
        return {}
    if len(hosts) == 1:
        return dict.fromkeys(groups, hosts[0])
    ring = uhashring.HashRing(nodes=sorted(hosts))
    return {group: ring.get_node(group) for group in groups}

"""Push isolation: one topic for each tenant, delivered to its endpoint by HTTP POST. A user of EMQ, not a part of it.

`endpoint` reads a tenant's endpoint from its topic, `headers` says what a request carries, `pusher` sends it, and
`verdict` decides what the answer means for the message. Needs the extra `push`.
"""

from __future__ import annotations

import importlib.util

from emq import errors, extras

for _needed in ("aiohttp", "httptools"):
    if importlib.util.find_spec(_needed) is None:
        raise errors.InvalidSettings(f"HTTP push needs {_needed}, which is missing: {extras.remedy('push')}")

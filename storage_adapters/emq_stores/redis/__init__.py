"""Redis and Valkey: log queues as lists with dense offsets, lanes as sorted sets, one Lua script for each operation.

All keys of a storage shard share one hash tag, so that one script serves many queues in one round trip. Works on
Redis >= 7.0 and Valkey.
"""

from emq_stores.redis.opening import open_store
from emq_stores.redis.store import RedisStore

__all__ = ["RedisStore", "open_store"]

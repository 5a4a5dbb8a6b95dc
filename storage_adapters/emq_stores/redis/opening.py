"""Opens a store: one server, the master behind sentinels, a cluster, or a list of servers."""

from __future__ import annotations

import functools
import re
import secrets
from typing import Any

import redis.asyncio
import redis.asyncio.retry
import redis.backoff
import redis.driver_info

from emq.runtime import errors
from emq.runtime.environment import Environment
from emq_stores.redis.address import Address, parsed
from emq_stores.redis.cluster import ClusterServer, hash_slot
from emq_stores.redis.cluster_wakeups import ClusterWakeUps
from emq_stores.redis.damage import Scripts
from emq_stores.redis.keys import SERVERS, Shard, cluster_shards, shard_count
from emq_stores.redis.moving import ListedStore
from emq_stores.redis.packing import pack_in_c
from emq_stores.redis.sentinels import OneAtATime
from emq_stores.redis.server import Server, check_version
from emq_stores.redis.server_list import ServerList, range_of
from emq_stores.redis.store import Location, RedisStore
from emq_stores.redis.topology import Topology
from emq_stores.redis.wakeups import ServerWakeUps

CLUSTER_SHARDS = 64
"""Default number of shards on a cluster; enough to give some twenty masters about the same share."""

CONNECT_TIMEOUT_S = 5
SENTINEL_S = 0.3
"""Most seconds that the driver waits for a connection to a sentinel, and for its answer; then it asks the next one. A
call has one second at least, and the driver may have to ask several sentinels in it. Servers have no time-out in the
driver: `Patience` bounds their calls, and the driver would make a task and two timers for each call."""


async def open_store(url: str, environment: Environment) -> RedisStore:
    """Connect to the store that a URL names.

    The forms of a URL; with `rediss` instead of `redis`, the connections use TLS:

    - `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`: one server.
    - `redis+sentinel://[USER:PASSWORD@]HOST:PORT,.../NAME[/DB]`: the master that the sentinels at HOST:PORT call NAME.
    - `redis+cluster://[USER:PASSWORD@]HOST:PORT,...`: the cluster to which these nodes belong.
    - `redis+servers://[USER:PASSWORD@]HOST:PORT,...[/DB]`: servers that share the data, without a cluster; see
      `emq_stores.redis.server_list`.

    With sentinels or a cluster, a replica may take over from its master. Then all writes that the master had not passed
    on to the replica are lost, also acknowledged ones. Messages published with durability "replicated" are not lost.
    Hosts repeat lost claims and verdicts. Durability "fsynced" concerns the master's disk only; the replica that takes
    over has another disk.

    Args:
        url: may have the parameters `shards` (1 to 4,096; number of hash tags over which the keys are spread, by
            default 64 on a cluster or a list, and 1 elsewhere), `max_queue_qps` (most operations a second that a topic
            may ask of one queue), `sentinel_username` and `sentinel_password` (where the sentinels have their own), and
            those of the driver. The number of shards is fixed for the life of the data. The store remembers this
            number, so a later URL may leave it out.

    Raises:
        InvalidSettings: a part of the URL is wrong, or the data has another number of shards.
        StoreUnavailable: no server answers at that address, or the server is older than Redis 7.
    """
    address = parsed(url)
    _check_parameters(address)
    if address.kind in ("cluster", "servers"):
        return await _open_several(address, environment.value)
    return await _open_server(address, environment.value)


async def _open_server(address: Address, environment: str) -> RedisStore:
    sentinels = _sentinels(address) if address.kind == "sentinel" else None
    client = _master(sentinels, address) if sentinels else _client(address, *address.hosts[0])
    server = Server(client, address.shown, followed=sentinels is not None)

    async def disconnect() -> None:
        await server.patience.close()
        await client.aclose()
        if sentinels is not None:
            await sentinels.aclose()

    try:
        await _check_version(client, address.shown)
        if await server.command("EXISTS", SERVERS):
            raise errors.InvalidSettings(f"{address.shown} is one server of a list; open it with redis+servers://")
        count = await _agreed_shards(server, environment, address, 1)
    except BaseException:
        await disconnect()
        raise
    shards = [Shard(environment, index) for index in range(count)]
    instance = secrets.token_hex(8)
    wakeups = ServerWakeUps(client, server, shards, instance)
    return RedisStore(Location(server, shards, instance), wakeups, disconnect, max_queue_qps=address.max_queue_qps)


async def _open_several(address: Address, environment: str) -> RedisStore:
    seeds = [f"{host}:{port}" for host, port in address.hosts]
    kind = ServerList if address.kind == "servers" else Topology
    topology = kind(seeds, lambda host, port: _client(address, host, port), address.shown)
    server = ClusterServer(topology, address.shown)
    try:
        await topology.refresh()
        if isinstance(topology, ServerList):
            count = await _agreed_shards(server, environment, address, CLUSTER_SHARDS, topology.shards(environment))
            await topology.keep_shards(environment, count)
        else:
            await _check_version(topology.line(hash_slot(shard_count(environment))).client, address.shown)
            count = await _agreed_shards(server, environment, address, CLUSTER_SHARDS)
    except BaseException:
        await topology.close()
        raise
    shards, instance = cluster_shards(environment, count), secrets.token_hex(8)
    wakeups = ClusterWakeUps(topology, server, shards, instance)
    if isinstance(topology, ServerList):
        location = Location(server, shards, instance, lambda key: range_of(hash_slot(key)))
        return ListedStore(topology, location, wakeups, topology.close, max_queue_qps=address.max_queue_qps)
    location = Location(server, shards, instance, hash_slot)
    return RedisStore(location, wakeups, topology.close, max_queue_qps=address.max_queue_qps)


def _check_parameters(address: Address) -> None:
    """Refuse a URL with a parameter that the driver does not know; the driver itself would break at its first call."""
    try:
        redis.asyncio.ConnectionPool(**_options(address, *address.hosts[0])).make_connection()  # type: ignore[no-untyped-call]
    except TypeError as exc:
        named = re.search(r"argument '(\w+)'", str(exc))
        what = f"there is no parameter {named[1]!r}" if named else str(exc)
        raise errors.InvalidSettings(f"store URL {address.shown}: {what}; correct it or leave it out") from None


def _client(address: Address, host: str, port: int) -> redis.asyncio.Redis:
    options = _options(address, host, port)
    pool = redis.asyncio.ConnectionPool(**options)
    client = redis.asyncio.Redis.from_pool(pool)
    pack_in_c(client)
    return client


def _sentinels(address: Address) -> OneAtATime:
    options = _options(address, *address.hosts[0])
    del options["host"], options["port"]
    tls = options.pop("connection_class", None) is not None
    own = {"username": address.sentinel_username, "password": address.sentinel_password}
    common = {name: value for name, value in options.items() if name.startswith(("socket_", "ssl_")) or name == "retry"}
    asked = {**common, **dict.fromkeys(("socket_timeout", "socket_connect_timeout"), SENTINEL_S), **own}
    asked |= {"ssl": tls, "protocol": 2}
    return OneAtATime(address.hosts, sentinel_kwargs=asked, ssl=tls, **options)


def _master(sentinels: OneAtATime, address: Address) -> redis.asyncio.Redis:
    client: redis.asyncio.Redis = sentinels.master_for(address.master_name)
    pack_in_c(client)
    return client


def _options(address: Address, host: str, port: int) -> dict[str, Any]:
    """Return the arguments of a connection to one server."""
    return {
        "protocol": 2,
        "retry": redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0),
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": None,
        "health_check_interval": 0,
        "driver_info": _driver(),
        **address.options(host, port),
    }


@functools.cache
def _driver() -> redis.driver_info.DriverInfo:
    """Return what connections tell the server of the driver, which otherwise reads its own package's files for each."""
    return redis.driver_info.DriverInfo()


async def _check_version(client: redis.asyncio.Redis, shown: str) -> None:
    server = Server(client, shown)
    try:
        info = await server.command("INFO", "server")
    finally:
        await server.patience.close()
    check_version(info if isinstance(info, dict) else {}, shown)


async def _agreed_shards(
    server: Scripts, environment: str, address: Address, default: int, known: int | None = None
) -> int:
    """Return the number of shards that the store remembers. If it has none yet, store the URL's number or `default`."""
    wanted = address.shards or default
    count = known or int(await server.run("shards", [shard_count(environment)], [wanted], allow_oom=True))
    if address.shards not in (None, count):
        raise errors.InvalidSettings(
            f"store URL {address.shown}: shards={address.shards}, but the data there lies in {count} shards, which "
            f"cannot be changed; give shards={count}, or leave it out"
        )
    return count

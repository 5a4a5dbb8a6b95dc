"""Carries out the events of a schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from emq.allocation import records
from support.simulation.cluster import Cluster
from support.simulation.database_loss import database_empty, database_shorter
from support.simulation.member import Member
from support.simulation.network import SHARDS, Network, Shard, Wakes
from support.simulation.plans import Event
from support.simulation.schedule import END_S, SESSION_S, WRONG_S
from support.simulation.sleeps import Sleep

LONGEST_DELAY_S = 2.5
"""Longest delay in seconds of a call to store or database, and of its answer."""

A_LITTLE_S = 6.0
"""Seconds by which a clock is set back or forward; a note of the time is about as old."""


async def happen(cluster: Cluster, event: Event) -> None:
    """Make an event happen, and end it when its time is over."""
    await EVENTS[event.what](cluster, event)


def _host(cluster: Cluster, event: Event) -> Member | None:
    members = cluster.alive
    if not members:
        _note(cluster, event.what, "nobody is there")
        return None
    member = members[event.pick % len(members)]
    _note(cluster, event.what, member.life)
    return member


def _note(cluster: Cluster, what: str, text: str) -> None:
    cluster.evidence.note("", f"--- {what}: {text}")
    cluster.evidence.happened[what] += 1


# ----------------------------------------------------------------------------------------------------- what is clean


async def join(cluster: Cluster, event: Event) -> None:
    if len(cluster.alive) < cluster.schedule.most_hosts:
        _note(cluster, "join", cluster.join().life)


async def leave(cluster: Cluster, event: Event) -> None:
    if len(cluster.alive) > 1 and (member := _host(cluster, event)) is not None:
        member.leave()


async def weight(cluster: Cluster, event: Event) -> None:
    if (member := _host(cluster, event)) is not None:
        await cluster.order(member, records.Order(weight=round(0.1 + 3 * event.size, 2)))


async def drain(cluster: Cluster, event: Event) -> None:
    if (member := _host(cluster, event)) is not None:
        await cluster.order(member, records.Order(drain=True))
        await asyncio.sleep(event.for_s)
        await cluster.order(member, records.Order())


async def create_again(cluster: Cluster, event: Event) -> None:
    _note(cluster, "create_again", "a topic")
    await cluster.topics.create_again(4 * event.size if event.size > 0.4 else 0.0)


async def resize(cluster: Cluster, event: Event) -> None:
    _note(cluster, "resize", "a topic")
    await cluster.topics.resize(event.pick)


async def pause_topic(cluster: Cluster, event: Event) -> None:
    _note(cluster, event.what, f"for {event.for_s / 2:.2f} s")
    await cluster.topics.pause()
    await asyncio.sleep(event.for_s / 2)
    await cluster.topics.go_on()


async def resize_keyed(cluster: Cluster, event: Event) -> None:
    _note(cluster, event.what, "a topic with keys")
    await cluster.topics.resize_keyed()


async def resize_budget(cluster: Cluster, event: Event) -> None:
    _note(cluster, event.what, "a budget of several topics")
    await cluster.topics.resize_budget()


# --------------------------------------------------------------------------------------------- processes that go wrong


async def crash(cluster: Cluster, event: Event) -> None:
    if (member := _host(cluster, event)) is not None:
        cluster.kill(member)


async def rebirth(cluster: Cluster, event: Event) -> None:
    """A host is killed, and its supervisor starts it again under its name."""
    if (member := _host(cluster, event)) is not None:
        cluster.kill(member)
        await asyncio.sleep(event.for_s / 4)
        cluster.join(member.name)


async def pause(cluster: Cluster, event: Event) -> None:
    if (member := _host(cluster, event)) is not None and not member.process.stopped:
        member.pause()
        await asyncio.sleep(event.for_s)
        if member in cluster.alive:
            cluster.evidence.note("", f"--- {member.life} goes on")
            member.go_on(tree_first=event.size < 0.5)


async def _suspend(cluster: Cluster, members: list[Member], for_s: float) -> None:
    since = cluster.evidence.now
    for member in members:
        member.pause()
    await asyncio.sleep(for_s)
    for member in members:
        cluster.evidence.sleeps.append(Sleep(member.life, since, cluster.evidence.now))
        if member in cluster.alive:
            cluster.evidence.note("", f"--- {member.life} wakes up")
            member.wake(for_s)


async def suspend(cluster: Cluster, event: Event) -> None:
    """A machine sleeps: like a pause, but its timers do not notice the time that passed."""
    if (member := _host(cluster, event)) is not None and not member.process.stopped:
        await _suspend(cluster, [member], event.for_s)


async def suspend_all(cluster: Cluster, event: Event) -> None:
    """All machines sleep at once, like those of one hypervisor."""
    members = [member for member in cluster.alive if not member.process.stopped]
    _note(cluster, event.what, f"{len(members)} hosts for {event.for_s} s")
    await _suspend(cluster, members, event.for_s)


async def crash_many(cluster: Cluster, event: Event) -> None:
    """Several hosts are killed at once."""
    members = cluster.alive[event.pick % 3 :: 3]
    _note(cluster, event.what, f"{len(members)} hosts")
    for member in members:
        cluster.kill(member)


async def roll(cluster: Cluster, event: Event) -> None:
    """A rolling restart: one host after the other stops in order and starts again under its name."""
    _note(cluster, event.what, f"{len(cluster.alive)} hosts")
    for member in list(cluster.alive):
        if cluster.evidence.now > END_S or member.task is None or member not in cluster.alive:
            continue
        member.leave()
        _, late = await asyncio.wait([member.task], timeout=SESSION_S)
        if not late and not any(other.name == member.name for other in cluster.alive):
            cluster.join(member.name)


async def leader_crash(cluster: Cluster, event: Event) -> None:
    """The leader is killed between two writes of the next plan."""
    leader, left = cluster.leader(), 1 + event.pick % 4
    if leader is None:
        return
    session = leader.tree.session

    def between_writes(operation: str, path: str) -> bool:
        nonlocal left
        if "/serverlist" in path and leader.tree.session == session and leader in cluster.alive:
            left -= 1
            if left == 0:
                _note(cluster, "leader_crash", f"{leader.life} behind {operation} of {path}")
                cluster.kill(leader)
        return False

    cluster.ensemble.loses_answer = between_writes
    cluster.join()
    await asyncio.sleep(event.for_s)
    if cluster.ensemble.loses_answer is between_writes:
        cluster.ensemble.loses_answer = lambda operation, path: False


# ------------------------------------------------------------------------------------------------------- the ensemble


async def partition(cluster: Cluster, event: Event) -> None:
    if (member := _host(cluster, event)) is not None:
        cluster.ensemble.partition(member.tree, silent=event.size < 0.5)
        await asyncio.sleep(event.for_s)
        cluster.ensemble.heal(member.tree)
        cluster.evidence.note("", f"--- {member.life} can reach the ensemble again")


async def expire(cluster: Cluster, event: Event) -> None:
    """A session ends because its heartbeats do not arrive; the host is well, and hears of the end at once."""
    if (member := _host(cluster, event)) is not None:
        session = member.tree.session
        cluster.ensemble.partition(member.tree, silent=True)
        for _ in range(round(SESSION_S / 0.01) + 1):
            if session not in cluster.ensemble.sessions:
                break
            await asyncio.sleep(0.01)
        cluster.ensemble.heal(member.tree)


async def quorum(cluster: Cluster, event: Event) -> None:
    _note(cluster, "quorum", f"lost for {event.for_s} s")
    cluster.ensemble.quorum = False
    await asyncio.sleep(event.for_s)
    cluster.ensemble.quorum = True


async def tree_silent_for_all(cluster: Cluster, event: Event) -> None:
    """The connections stay, and nothing passes."""
    _note(cluster, event.what, f"for {event.for_s} s")
    trees = [member.tree for member in cluster.alive]
    for one in trees:
        cluster.ensemble.partition(one, silent=True)
    await asyncio.sleep(event.for_s)
    for one in trees:
        cluster.ensemble.heal(one)


async def tree_delay(cluster: Cluster, event: Event) -> None:
    _note(cluster, "tree_delay", f"up to {event.size * SESSION_S / 4:.2f} s")
    cluster.ensemble.delay = lambda: cluster.rng.uniform(0, event.size * SESSION_S / 4)
    await asyncio.sleep(event.for_s)
    cluster.ensemble.delay = lambda: 0.0


async def tree_loss(cluster: Cluster, event: Event) -> None:
    _note(cluster, "tree_loss", f"{event.size / 4:.2f} of the answers")
    cluster.ensemble.loses_answer = lambda operation, path: cluster.rng.random() < event.size / 4
    await asyncio.sleep(event.for_s)
    cluster.ensemble.loses_answer = lambda operation, path: False


# ------------------------------------------------------------------------------------------------------------- clocks


async def clock_jump(cluster: Cluster, event: Event) -> None:
    """A machine's clock is set to another time."""
    if (member := _host(cluster, event)) is not None:
        member.ahead_s += (event.size - 0.5) * 2 * WRONG_S


async def reference_jump(cluster: Cluster, event: Event) -> None:
    """The clock that all hosts follow is set to another time.

    It is never set back while no host runs, as docs/host/time.md asks: nobody would be left who has counted on
    since the last note of the environment's time.
    """
    most_s = A_LITTLE_S if int(event.size * 1_000) % 2 else WRONG_S
    by_s = round((event.size - 0.5) * 2 * most_s, 3)
    if not cluster.alive:
        by_s = abs(by_s)
    _note(cluster, "reference_jump", f"{by_s:+.3f} s")
    cluster.db.ahead_s += by_s


# ------------------------------------------------------------------------------------------------ store and database


def _on(network: Callable[[Member], Network], fault: str) -> Callable[[Cluster, Event], Awaitable[None]]:
    async def on(cluster: Cluster, event: Event) -> None:
        if (member := _host(cluster, event)) is not None:
            await _spoil(cluster, network(member), fault, event)

    return on


def _on_all(network: Callable[[Member], Network], fault: str) -> Callable[[Cluster, Event], Awaitable[None]]:
    async def on_all(cluster: Cluster, event: Event) -> None:
        if members := list(cluster.alive):
            _note(cluster, event.what, f"{len(members)} hosts")
            await asyncio.gather(*(_spoil(cluster, network(m), fault, event) for m in members))

    return on_all


async def publisher_loss(cluster: Cluster, event: Event) -> None:
    _note(cluster, "publisher_loss", f"{event.size / 2:.2f} of the answers")
    await _spoil(cluster, cluster.store.network, "loses", event)


async def store_shorter(cluster: Cluster, event: Event) -> None:
    """The store comes back without the writes of the last second or less."""
    _note(cluster, "store_shorter", f"by {event.size:.2f} s")
    kept = cluster.snapshot()
    await asyncio.sleep(event.size)
    cluster.lose(kept)


async def growth_lost(cluster: Cluster, event: Event) -> None:
    """The number of groups changes under keys, and at once the store comes back as it was before."""
    _note(cluster, "growth_lost", "the queues of a topic with keys take its former layout again")
    kept = cluster.snapshot()
    await cluster.topics.resize_keyed()
    cluster.lose(kept)


async def store_empty(cluster: Cluster, event: Event) -> None:
    """The store comes back empty."""
    _note(cluster, "store_empty", "all of it")
    cluster.lose(None)


async def _spoil(cluster: Cluster, network: Network, fault: str, event: Event) -> None:
    if fault == "down":
        network.down = True
    elif fault == "silent":
        network.silent = True
    elif fault == "delay":
        network.delay = lambda: cluster.rng.uniform(0, LONGEST_DELAY_S * event.size)
    else:
        network.loses = lambda: cluster.rng.random() < event.size / 2
    await asyncio.sleep(event.for_s)
    network.heal()


async def _lose_shard(cluster: Cluster, event: Event, silent: bool) -> None:
    """One shard of the store is out of reach for all hosts."""
    shard = Shard(event.pick % SHARDS, silent)
    _note(cluster, event.what, f"shard {shard.number} for {event.for_s} s")
    networks = [cluster.store.network, *(member.store.network for member in cluster.alive)]
    for network in networks:
        network.shard = shard
    await asyncio.sleep(event.for_s)
    for network in networks:
        network.shard = None


async def shard_down(cluster: Cluster, event: Event) -> None:
    await _lose_shard(cluster, event, silent=False)


async def shard_silent(cluster: Cluster, event: Event) -> None:
    await _lose_shard(cluster, event, silent=True)


def _wakes(how: Wakes) -> Callable[[Cluster, Event], Awaitable[None]]:
    """Return an event that changes how wake-ups reach the hosts."""

    async def spoil(cluster: Cluster, event: Event) -> None:
        if (member := _host(cluster, event)) is not None:
            member.store.wakes = how
            await asyncio.sleep(event.for_s)
            member.store.wakes = Wakes.WELL

    return spoil


async def unforeseen(cluster: Cluster, event: Event) -> None:
    """Calls to all servers, and awaits of a host's loops, raise what nobody expects."""
    if (member := _host(cluster, event)) is not None:
        member.breaks.share = 0.002 + 0.1 * event.size**3
        await asyncio.sleep(event.for_s / 2)
        member.breaks.share = 0.0
        cluster.evidence.happened["unforeseen error"] += member.breaks.happened


async def store_full(cluster: Cluster, event: Event) -> None:
    """The store is full and takes no new messages."""
    _note(cluster, event.what, f"for {event.for_s / 2:.2f} s")
    stores = [cluster.store, *(member.store for member in cluster.alive)]
    for store in stores:
        store.network.full = True
    await asyncio.sleep(event.for_s / 2)
    for store in stores:
        store.network.full = False


EVENTS: dict[str, Callable[[Cluster, Event], Awaitable[None]]] = {
    "join": join,
    "leave": leave,
    "weight": weight,
    "drain": drain,
    "resize": resize,
    "crash": crash,
    "rebirth": rebirth,
    "pause": pause,
    "leader_crash": leader_crash,
    "partition": partition,
    "expire": expire,
    "quorum": quorum,
    "tree_delay": tree_delay,
    "tree_loss": tree_loss,
    "store_delay": _on(lambda m: m.store.network, "delay"),
    "store_loss": _on(lambda m: m.store.network, "loses"),
    "store_down": _on(lambda m: m.store.network, "down"),
    "database_delay": _on(lambda m: m.database.network, "delay"),
    "database_loss": _on(lambda m: m.database.network, "loses"),
    "database_down": _on(lambda m: m.database.network, "down"),
    "tree_silent_for_all": tree_silent_for_all,
    "store_silent": _on(lambda m: m.store.network, "silent"),
    "database_silent": _on(lambda m: m.database.network, "silent"),
    "store_silent_for_all": _on_all(lambda m: m.store.network, "silent"),
    "suspend": suspend,
    "suspend_all": suspend_all,
    "crash_many": crash_many,
    "roll": roll,
    "store_down_for_all": _on_all(lambda m: m.store.network, "down"),
    "database_down_for_all": _on_all(lambda m: m.database.network, "down"),
    "database_silent_for_all": _on_all(lambda m: m.database.network, "silent"),
    "publisher_loss": publisher_loss,
    "shard_down": shard_down,
    "shard_silent": shard_silent,
    "store_shorter": store_shorter,
    "store_empty": store_empty,
    "growth_lost": growth_lost,
    "database_shorter": database_shorter,
    "database_empty": database_empty,
    "create_again": create_again,
    "pause_topic": pause_topic,
    "resize_keyed": resize_keyed,
    "resize_budget": resize_budget,
    "wake_late": _wakes(Wakes.LATE),
    "wake_again": _wakes(Wakes.AGAIN),
    "wake_lost": _wakes(Wakes.LOST),
    "store_full": store_full,
    "unforeseen": unforeseen,
    "clock_jump": clock_jump,
    "reference_jump": reference_jump,
}

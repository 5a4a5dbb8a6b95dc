"""The model of `emq size`: what a steady flow of messages needs, by constants that `bench growth --only model` fits."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from emq_cli.forecast import UTILISATION

HOST_SHARE: Final = UTILISATION
"""Part of its core that a host may use: the rest is for groups of a host that died, and for backlogs."""
STORE_SHARE: Final = 0.4
"""Part of its core that a master of the store may use."""
DATABASE_ROWS: Final = 20_000
"""Checkpoint rows a second to plan with for one PostgreSQL; a probe of the statement alone gave 47,000 to 104,000."""
MOST: Final = 1_024
"""Most hosts, as many as a family has buckets, and most masters."""
MOST_SEEN: Final = 4_000.0
"""Messages a second of the densest flow that the model was fitted to."""
MOST_RATE: Final = 1e9
"""Messages a second beyond which nothing is told."""
WAITING_BYTES: Final = 40
"""Bytes that the store needs for a message that waits, beside its payload."""


class Flow(NamedTuple):
    """Messages that come in steadily.

    Attributes:
        awake: tenants that have had messages lately.
        rate: messages a second to all of them.
        payload: bytes of a message.
    """

    awake: int
    rate: float
    payload: int

    def part(self, of: int) -> Flow:
        """Return the part of one of `of` hosts or masters."""
        return self._replace(awake=math.ceil(self.awake / of), rate=self.rate / of)


class Sizes(msgspec.Struct):
    """What each term of a flow costs; see `flow_terms` and `memory_terms`.

    Attributes:
        date, machine: of the run that gave these figures.
    """

    host_cores: list[float]
    store_cores: list[float]
    host_mb: list[float]
    date: str
    machine: str


@functools.cache
def measured() -> Sizes:
    """Return the constants that come with this version."""
    return msgspec.json.decode(Path(__file__).with_name("sizes.json").read_bytes(), type=Sizes)


def flow_terms(flow: Flow) -> list[float]:
    """Being there; each message; each kilobyte; each pass or call, which many messages share in a dense flow."""
    return [1.0, flow.rate, flow.rate * flow.payload / 1e3, _passes(flow.rate)]


def _passes(rate: float) -> float:
    """Grow with the root of the rate, and beyond `MOST_SEEN` by as much for each message as there, to be careful."""
    seen = min(rate, MOST_SEEN)
    return math.sqrt(seen) + (rate - seen) / (2 * math.sqrt(MOST_SEEN))


def memory_terms(flow: Flow) -> list[float]:
    """Being there; each tenant that is awake."""
    return [1.0, float(flow.awake)]


def rows_per_s(flow: Flow, checkpoint_s: float) -> float:
    """Return the checkpoint rows a second: of the queues, those that get a message between two checkpoints."""
    return flow.awake * -math.expm1(-flow.rate * checkpoint_s / flow.awake) / checkpoint_s


def predicted(sizes: Sizes, flow: Flow, checkpoint_s: float) -> dict[str, float]:
    """Return what one host and one master take for a flow: host_cores, store_cores, host_mb, rows_per_s."""
    return {
        "host_cores": _sum(sizes.host_cores, flow_terms(flow)),
        "store_cores": _sum(sizes.store_cores, flow_terms(flow)),
        "host_mb": _sum(sizes.host_mb, memory_terms(flow)),
        "rows_per_s": rows_per_s(flow, checkpoint_s),
    }


def _sum(costs: Sequence[float], terms: Sequence[float]) -> float:
    return sum(cost * term for cost, term in zip(costs, terms, strict=True))


class TooMuch(ValueError):
    """More hosts or masters than `MOST`."""


class Needs(NamedTuple):
    """What a flow needs.

    Attributes:
        hosts, masters: processes of hosts, and masters of the store; a core each.
        host_use, store_use: part of its core that each of them uses.
        host_mb: memory of each host.
        store_mb: memory of all masters together for messages that wait through the outage.
        in_flight: messages that run at a time, on all hosts.
        rows_per_s: checkpoint rows a second in the database.
        limits: by what comes to its limit (hosts, store, in flight, database), the messages a second until which it
            holds with these hosts and masters, the least one first.
    """

    hosts: int
    host_use: float
    host_mb: float
    masters: int
    store_use: float
    store_mb: float
    in_flight: float
    rows_per_s: float
    limits: dict[str, float]


class Model(NamedTuple):
    """What a flow costs.

    Attributes:
        max_in_flight: room of a host.
        handler_cpu_s: CPU of a call of the handler.
        handler_s: how long a call takes.
    """

    sizes: Sizes
    checkpoint_s: float
    max_in_flight: int
    handler_cpu_s: float = 0.0
    handler_s: float = 0.0

    def needs(self, flow: Flow, outage_s: float) -> Needs:
        """Return what a flow needs.

        Args:
            outage_s: time without consumers that the store's memory must last for.

        Raises:
            TooMuch: it needs too many hosts or masters.
        """
        hosts = _least(lambda n: self._host(flow, n) <= HOST_SHARE and self._flight(flow, n) <= 1)
        masters = _least(lambda n: self._store(flow, n) <= STORE_SHARE)
        holds: dict[str, Callable[[Flow], bool]] = {
            "hosts": lambda flow: self._host(flow, hosts) <= HOST_SHARE,
            "store": lambda flow: self._store(flow, masters) <= STORE_SHARE,
            "in flight": lambda flow: self._flight(flow, hosts) <= 1,
            "database": lambda flow: rows_per_s(flow, self.checkpoint_s) <= DATABASE_ROWS,
        }
        limits = {name: _most(functools.partial(_holds, held, flow)) for name, held in holds.items()}
        return Needs(
            hosts=hosts,
            host_use=self._host(flow, hosts),
            host_mb=_sum(self.sizes.host_mb, memory_terms(flow.part(hosts))),
            masters=masters,
            store_use=self._store(flow, masters),
            store_mb=flow.rate * outage_s * (flow.payload + WAITING_BYTES) / 1e6,
            in_flight=self._flight(flow, hosts) * hosts * self.max_in_flight,
            rows_per_s=rows_per_s(flow, self.checkpoint_s),
            limits=dict(sorted(limits.items(), key=lambda each: each[1])),
        )

    def _host(self, flow: Flow, hosts: int) -> float:
        mine = flow.part(hosts)
        return _sum(self.sizes.host_cores, flow_terms(mine)) + mine.rate * self.handler_cpu_s

    def _store(self, flow: Flow, masters: int) -> float:
        return _sum(self.sizes.store_cores, flow_terms(flow.part(masters)))

    def _flight(self, flow: Flow, hosts: int) -> float:
        """Return the part of the hosts' room that is taken."""
        return flow.rate * max(self.handler_s, self.handler_cpu_s) / (hosts * self.max_in_flight)


def _holds(held: Callable[[Flow], bool], flow: Flow, rate: float) -> bool:
    return held(flow._replace(rate=rate))


def _least(suffices: Callable[[int], bool]) -> int:
    """Return the least number of processes that suffices."""
    found = bisect.bisect_left(range(1, MOST + 1), True, key=suffices) + 1
    if found > MOST:
        raise TooMuch
    return found


def _most(holds: Callable[[float], bool]) -> float:
    """Return the most messages a second for which something holds, within a thousandth; infinite above `MOST_RATE`."""
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, high * 2
        if high > MOST_RATE:
            return math.inf
    while high - low > low / 1_000 + 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low

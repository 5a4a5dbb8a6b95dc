"""Reads the metrics of a process from its counters, when somebody asks.

No label holds a topic, a tenant or a queue, so the number of series does not grow with them. The label `handler` holds
the pattern to which a handler is bound, and at most `MAX_HANDLERS` (200) patterns are told apart.
"""

from __future__ import annotations

import functools
import math
import resource
from collections.abc import Iterator
from importlib import metadata

from emq.groups.deliveries import Deliveries
from emq.host.host import Host
from emq.host.lag_parts import Part
from emq.observe.metrics import health
from emq.observe.metrics.families import Family, Histogram, Labels, counter, gauge
from emq.observe.opened import Opened

WAITS = range(10, 35)
"""Buckets of waits: from 1 ms to about 5 hours, in powers of two."""

RUNS = range(5, 30)
"""Buckets of handler times: from 32 us to about 9 minutes."""

LAGS = range(10, 26)
"""Buckets of the event loop's delays: from 1 ms to about 34 s."""


def of_process(app: Opened) -> Iterator[Family]:
    """Yield all families of the process, with those of the host if the app consumes."""
    name = app.host_name() if app.host is None else app.host.membership.host
    labels = (("version", _version()), ("host", name), ("environment", app.settings.environment.value))
    told = "1; the labels tell the version of EMQ, the name of the host in its cluster, and the environment."
    yield Family("emq_info", "gauge", told, [(labels, 1)])
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield counter(
        "emq_process_cpu_seconds_total",
        "CPU time of this process, in seconds. Its event loop uses one core at most.",
        used.ru_utime + used.ru_stime,
    )
    yield gauge("emq_process_max_memory_bytes", "Most memory that this process has used.", used.ru_maxrss * 1024)
    if app.is_open:
        yield counter("emq_published_total", "Messages that this process has published.", app.producer.published)
    if app.host is not None:
        yield from of_host(app.host)


def of_host(host: Host) -> Iterator[Family]:
    """Yield the families of a host."""
    yield from _deliveries(host)
    yield from _lag(host)
    yield from _throttles(host)
    yield from _buffers(host)
    yield from _checkpoints(host)
    yield from _cluster(host)
    yield from _clock(host)
    yield from _servers(host)
    yield from _loops(host)


def _deliveries(host: Host) -> Iterator[Family]:
    counts = list(host.deliveries or ())
    yield Family(
        "emq_started_total", "counter", "Deliveries handed to a handler.", ((_of(c), sum(c.waits)) for c in counts)
    )
    yield Family(
        "emq_outcomes_total",
        "counter",
        "Messages by outcome: succeeded; retried (failed, and tried again later); dead (failed for good); expired "
        "(not started within their time to live). Expired and dead messages are in the dead letters.",
        (
            ((*_of(c), ("outcome", outcome)), value)
            for c in counts
            for outcome, value in (
                ("succeeded", sum(c.runs) - c.failed),
                ("retried", c.retried),
                ("dead", c.dead),
                ("expired", c.expired),
            )
        ),
    )
    yield Family(
        "emq_failed_total", "counter", "Deliveries that failed, for any reason.", ((_of(c), c.failed) for c in counts)
    )
    yield Family(
        "emq_wait_seconds",
        "histogram",
        "Time that a message waited in this host's buffer, from ready to start, in seconds.",
        ((_of(c), Histogram(c.waits, c.waited_us)) for c in counts),
        WAITS,
    )
    yield Family(
        "emq_handler_seconds",
        "histogram",
        "Time that the handler took for a delivery, in seconds; each message of a batch counts with the batch's time.",
        ((_of(c), Histogram(c.runs, c.ran_us)) for c in counts),
        RUNS,
    )


def _lag(host: Host) -> Iterator[Family]:
    lag = host.lag
    if lag.sampled_at is None:
        return
    yield gauge(
        "emq_lag_messages",
        "Messages of this host's groups that are not done, by what they wait for, as of emq_lag_age_seconds ago.",
        {**{part.value: lag.counts[part] for part in Part}, "in_flight": host.work.dispatcher.flight.count},
        "part",
    )
    yield gauge(
        "emq_lag_age_seconds",
        "Age of the counts of emq_lag_messages, in seconds; it grows while the store does not answer.",
        max(0.0, host.statistics().time - lag.sampled_at),
    )


def _buffers(host: Host) -> Iterator[Family]:
    held = host.work.gauge
    yield gauge("emq_buffered_messages", "Messages in this host's memory that have not started.", held.messages)
    yield gauge("emq_buffered_bytes", "Bytes of these messages, with their keys and headers.", held.bytes)
    yield gauge("emq_in_flight_bytes", "Bytes of the messages in flight whose handlers wait.", held.flying)
    yield gauge("emq_buffer_limit_messages", "Most messages that this host buffers.", held.max_messages)
    yield gauge("emq_buffer_limit_bytes", "Most bytes that this host buffers.", held.max_bytes)
    yield gauge("emq_in_flight_messages", "Messages started and not settled.", host.work.dispatcher.flight.count)
    yield gauge("emq_in_flight_limit_messages", "Most messages in flight on this host.", host.options.max_in_flight)
    totals = host.statistics().totals
    yield counter("emq_fetched_total", "Messages read from queues, or claimed from slots.", totals.fetched)
    yield counter("emq_holes_total", "Offsets skipped because the queue held nothing there.", totals.holes)


def _checkpoints(host: Host) -> Iterator[Family]:
    checkpointer = host.work.checkpointer
    yield counter("emq_checkpoints_saved_total", "Checkpoints of single queues saved.", checkpointer.saved)
    yield counter(
        "emq_checkpoint_failures_total",
        "Attempts to save the progress of all changed queues that failed.",
        checkpointer.failures,
    )
    yield gauge(
        "emq_checkpoint_unsaved_seconds",
        "Age of the oldest progress that no checkpoint covers, in seconds; a crash repeats this much work.",
        checkpointer.unsaved_s,
    )
    keepers = host.records.keepers
    yield gauge(
        "emq_records_waiting",
        "Records that wait for the database, such as those of attempts to push.",
        {keeper.kind: keeper.waiting for keeper in keepers},
        "kind",
    )
    yield counter(
        "emq_records_lost_total",
        "Records left out, since too many waited for the database, or no table takes them; the log says which.",
        {keeper.kind: keeper.lost for keeper in keepers},
        "kind",
    )


def _cluster(host: Host) -> Iterator[Family]:
    lease, now = host.membership.lease, host.statistics().time
    yield gauge("emq_lease_valid", "1 while this host may claim and start messages, else 0.", int(now < lease.until))
    yield gauge(
        "emq_lease_remaining_seconds",
        "Time until this host must stop unless it hears from its cluster, in seconds; +Inf for a host on its own.",
        max(0.0, lease.until - now) if math.isfinite(lease.until) else math.inf,
    )
    plan, ownership = host.membership.plan, host.ownership
    yield gauge(
        "emq_plan_version",
        "Number of the plan that this host follows; 0 before the first.",
        plan.version if plan else 0,
    )
    yield gauge("emq_plan_hosts", "Hosts in that plan.", plan.hosts if plan else 0)
    yield gauge("emq_groups_owned", "Groups that this host consumes.", len(ownership.groups))
    missing = host.consumption.unconsumed()
    yield gauge(
        "emq_groups_unconsumed",
        "Groups that the plan gives to this host and that it does not consume.",
        missing.groups,
    )
    yield gauge(
        "emq_groups_unconsumed_seconds",
        "Time for which the first of these groups has waited, in seconds; moves and restarts end within some seconds.",
        missing.for_s,
    )
    yield gauge("emq_queues_owned", "Queues of these groups.", len(ownership.queues))
    yield gauge("emq_topics_owned", "Topics of these groups.", len(ownership.owned))
    yield counter("emq_groups_lost_total", "Groups that a newer owner took from this host.", ownership.losses.groups)
    yield counter(
        "emq_queues_shrunk_total",
        "Queues read again because their store came back from a crash without messages.",
        ownership.shrunk_queues,
    )
    yield gauge("emq_catalog_version", "Version of the topic catalog that this host knows.", host.catalog.version)


def _clock(host: Host) -> Iterator[Family]:
    if host.timekeeper is None:
        return
    state = host.timekeeper.state()
    if state.uncertain_s is not None:
        yield gauge(
            "emq_clock_error_seconds",
            "Most seconds by which this host's clock may differ from the database's.",
            state.uncertain_s,
        )
    yield gauge(
        "emq_clock_machine_ahead_seconds",
        "Seconds by which the machine's own clock is ahead of the database's.",
        state.machine_ahead_s,
    )
    yield gauge("emq_clock_corrected_seconds", "Sum of all corrections of this host's clock.", state.corrected_s)


def _servers(host: Host) -> Iterator[Family]:
    store = host.store_unreachable
    yield gauge("emq_store_reachable", "1 while the store serves every call of this host, else 0.", int(not store))
    database = host.database
    yield gauge("emq_database_reachable", "1 while the database answers, else 0.", int(not health.trouble(database)))
    yield gauge(
        "emq_database_away_seconds", "Time for which the database has not answered, in seconds.", database.away_s
    )


def _throttles(host: Host) -> Iterator[Family]:
    limited = host.recorder.limited
    yield gauge(
        "emq_throttled_topics",
        "Topics that their handlers, or push, hold below their quota on this host: closed (nothing starts but a probe "
        "now and then) or limited to a lower rate.",
        {"closed": host.recorder.throttled - limited, "limited": limited},
        "state",
    )


def _loops(host: Host) -> Iterator[Family]:
    broken = host.guard.broken
    yield counter(
        "emq_loop_failures_total",
        "Unexpected failures of the host's loops, each followed by a new start; the log has them. 0 in a healthy host.",
        {name: broken[name] for name in sorted(host.guard.names | broken.keys())},
        "loop",
    )
    recorder = host.recorder
    yield Family(
        "emq_loop_lag_seconds",
        "histogram",
        "Delay with which the event loop ran a task that was due, measured once a second.",
        (((), Histogram(recorder.lags, recorder.lagged_us)),),
        LAGS,
    )
    yield counter("emq_wakeups_total", "Wake-ups from the store.", host.waker.woken)
    yield counter(
        "emq_wakeup_losses_total",
        "Times that wake-ups may have been lost, so that the host looked at everything.",
        host.waker.doubts,
    )


def _of(counts: Deliveries) -> Labels:
    return (("handler", counts.pattern),)


@functools.cache  # it reads files
def _version() -> str:
    try:
        return metadata.version("emq")
    except metadata.PackageNotFoundError:
        return "unknown"

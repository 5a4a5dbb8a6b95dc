"""A host's metrics in the registry of the library prometheus_client, for programs that serve `/metrics` themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from emq.observe.metrics import exposition, host_families
from emq.observe.metrics.families import Family, Histogram
from emq.observe.metrics.monitor import Monitor
from emq.observe.opened import Opened
from emq.runtime import errors, extras

try:
    from prometheus_client import Metric
    from prometheus_client.registry import Collector
except ModuleNotFoundError as exc:
    raise errors.InvalidSettings(
        f"emq.observe.metrics.collector needs the module {exc.name!r}; {extras.remedy('metrics')}"
    ) from exc


class Monitored(Opened, Protocol):
    """An app."""

    @property
    def monitor(self) -> Monitor: ...


class HostCollector(Collector):
    """Reads the metrics of an app whenever the registry is read: `REGISTRY.register(HostCollector(app))`.

    Make it before the app consumes: from then on, its hosts count their deliveries. A registry that is read in the
    app's event loop holds the loop up for as long as the page takes, about 0.1 ms for each handler.
    """

    def __init__(self, app: Monitored) -> None:
        self._app = app
        app.monitor.counts = True

    def collect(self) -> Iterator[Metric]:
        """Yield each family of metrics."""
        for family in host_families.of_process(self._app):
            yield _metric(family)


def _metric(family: Family) -> Metric:
    metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
    for labels, value in family.values:
        named = {name: exposition.encodable(text) for name, text in labels}
        if not isinstance(value, Histogram):
            metric.add_sample(family.name, named, value)
            continue
        for bound, below in value.buckets(family.sizes):
            metric.add_sample(f"{family.name}_bucket", {**named, "le": exposition.number(bound)}, below)
        metric.add_sample(f"{family.name}_bucket", {**named, "le": "+Inf"}, value.times)
        metric.add_sample(f"{family.name}_count", named, value.times)
        metric.add_sample(f"{family.name}_sum", named, value.total_us / 1e6)
    return metric

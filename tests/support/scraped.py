"""Reads a page of metrics as Prometheus does."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families


class Scraped:
    """A page by the names of its families; a counter's name ends with `_total`, as on the page."""

    def __init__(self, page: str) -> None:
        self.families: dict[str, Metric] = {}
        for family in text_string_to_metric_families(page):
            name = family.name + ("_total" if family.type == "counter" else "")
            assert name not in self.families, f"{name} is on the page twice"
            self.families[name] = family

    def value(self, series: str, **labels: str) -> float:
        """Return the value of one series."""
        [value] = [
            s.value for f in self.families.values() for s in f.samples if s.name == series and s.labels == labels
        ]
        return float(value)

    def series(self) -> dict[str, set[str]]:
        """Return the names of all series, each with the names of its labels."""
        found: dict[str, set[str]] = {}
        for family in self.families.values():
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
        return found

"""What an expression of PromQL asks for, and whether it fits the metrics that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql

from support.scraped import Scraped

ADDED_BY_PROMETHEUS = {"instance", "job", "le"}
BUILT_IN = {"up"}
OF_COUNTERS = {"rate", "increase", "irate"}


def nodes(expression: Any) -> Iterator[Any]:
    """Yield the expression and all expressions in it."""
    yield expression
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        inner = getattr(expression, name, None)
        if inner is not None:
            yield from nodes(inner)
    for inner in getattr(expression, "args", None) or ():
        yield from nodes(inner)


def faults(text: str, page: Scraped) -> list[str]:
    """Return what is wrong with an expression, in words."""
    try:
        expression = promql.parse(text)
    except ValueError as exc:
        return [f"{text}: {exc}"]
    found = []
    for node in nodes(expression):
        if isinstance(node, promql.VectorSelector):
            found += _unknown(node, page)
        elif isinstance(node, promql.Call):
            found += _wrong_call(node, page)
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            known = set().union(*(_labels(n, page) for n in nodes(node) if isinstance(n, promql.VectorSelector)))
            found += [f"no series has the label {x!r}" for x in node.modifier.labels if x not in known]
    return [f"{text}: {fault}" for fault in found]


def _labels(selector: Any, page: Scraped) -> set[str]:
    return page.series().get(selector.name, set()) | ADDED_BY_PROMETHEUS


def _unknown(selector: Any, page: Scraped) -> Iterator[str]:
    name = selector.name
    if name not in BUILT_IN and name not in page.series():
        yield f"there is no metric {name!r}"
        return
    for matcher in selector.matchers.matchers:
        if matcher.name not in _labels(selector, page):
            yield f"{name} has no label {matcher.name!r}"
        elif matcher.name in ("part", "outcome"):
            values = {s.labels[matcher.name] for f in page.families.values() for s in f.samples if s.name == name}
            if unknown := set(matcher.value.split("|")) - values:
                yield f"{name} has no {matcher.name} {sorted(unknown)}"


def _wrong_call(call: Any, page: Scraped) -> Iterator[str]:
    function = call.func.name
    names = [node.name for argument in call.args for node in nodes(argument) if isinstance(node, promql.VectorSelector)]
    for name in names:
        cumulative = re.search(r"_(total|bucket|sum|count)$", name) is not None
        if function in OF_COUNTERS and not cumulative:
            yield f"{function} of {name}, which is a gauge"
        if function == "deriv" and cumulative:
            yield f"deriv of {name}, which is a counter"
    if function == "histogram_quantile":
        for name in names:
            if not name.endswith("_bucket"):
                yield f"quantile of {name}, which has no buckets"
        for argument in call.args:
            for node in nodes(argument):
                if isinstance(node, promql.AggregateExpr) and "le" not in (
                    node.modifier.labels if node.modifier else []
                ):
                    yield "the buckets are added up over `le`"

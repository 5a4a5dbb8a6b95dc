"""How EMQ's rate compares with its peers', from the results of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

OF = "drain-3000"
"""The work by which the ratios go: 3,000 queues, an empty handler."""

Result = Mapping[str, Any]
"""What one peer did: `name`, `language`, `version`, `queues`, `configuration`, and `works`, by name."""


def rate(result: Result, work: str = OF) -> float:
    """Return the messages a second that a peer drained; 0 if it was not measured."""
    return float(result["works"].get(work, {}).get("drained_per_s", 0))


def fastest(results: Sequence[Result], *, python_only: bool, work: str = OF) -> Result | None:
    """Return the peer with the highest rate, EMQ left out; None if none was measured."""
    rivals = [one for one in results if one["name"] != "EMQ" and (one["language"] == "Python" or not python_only)]
    measured = [one for one in rivals if rate(one, work)]
    return max(measured, key=lambda one: rate(one, work)) if measured else None


def ratio(results: Sequence[Result], *, python_only: bool, work: str = OF) -> float:
    """Return EMQ's rate over that of the fastest peer; 0 if either was not measured."""
    own = next((rate(one, work) for one in results if one["name"] == "EMQ"), 0.0)
    rival = fastest(results, python_only=python_only, work=work)
    return round(own / rate(rival, work), 2) if rival is not None else 0.0

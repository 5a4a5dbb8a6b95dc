"""The text about a failure."""

from __future__ import annotations

from collections.abc import Sequence

from support.simulation.run import Outcome
from support.simulation.violation import Violation

MOST_VIOLATIONS = 8
LAST_EVENTS = 60


def report(outcome: Outcome) -> str:
    """Return the seed, its schedule, the violations, and the last events of the first group concerned."""
    violations = outcome.violations
    lines = [
        f"SEED={outcome.schedule.seed} breaks {', '.join(sorted({v.promise for v in violations}))}; "
        f"replay it with: {replay(outcome.schedule.seed, outcome.store)}",
        str(outcome.schedule),
        *(f"  {v.promise} {v.group}: {v.text}" for v in violations[:MOST_VIOLATIONS]),
    ]
    if len(violations) > MOST_VIOLATIONS:
        lines.append(f"  and {len(violations) - MOST_VIOLATIONS} more")
    return "\n".join([*lines, *_events(outcome, violations)])


def replay(seed: int, store: str) -> str:
    """Return the command that runs a seed again."""
    return f"make simulate SEED={seed}" + (f" STORE={store}" if store != "memory" else "")


def _events(outcome: Outcome, violations: Sequence[Violation]) -> list[str]:
    group = next((v.group for v in violations if v.group), "")
    concerned = [event for event in outcome.evidence.history if event[1] in ("", group)]
    # Up to the moment of the violation, where its text tells it.
    at = _moment(violations)
    before = [event for event in concerned if event[0] <= at]
    return [
        f"  the last events of {group or 'the cluster'} until then:",
        *(f"  {at:9.3f} s  {text}" for at, _, text in before[-LAST_EVENTS:]),
    ]


def _moment(violations: Sequence[Violation]) -> float:
    for violation in violations:
        _, found, rest = violation.text.rpartition(" at ")
        if found:
            try:
                return float(rest.removesuffix(" s")) + 0.5
            except ValueError:
                continue
    return float("inf")

"""Words about topics that were chosen by a pattern, the same in every command."""

from __future__ import annotations

from emq_cli import output


def matched(topics: int, pattern: str) -> str:
    """Return `1 topic that matches 'a*'`, `2 topics that match 'a*'`."""
    return f"{output.count(topics, 'topic')} that match{'es' if topics == 1 else ''} {pattern!r}"


def none(pattern: str, place: str) -> str:
    """Say that no topic matches; `place` names the store and the database (`App.place`)."""
    if pattern == "*":
        return f"there are no topics yet in the {place}; create one with: emq topic create NAME --qps 10"
    return f"no topic matches {pattern!r} in the {place}"

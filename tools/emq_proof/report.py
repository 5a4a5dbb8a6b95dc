"""Show a proof on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from emq.runtime import plurals
from emq_proof.checks import Violations
from emq_proof.proof import Proof

_TICK = Text("✓", style="green")
_CROSS = Text("✗", style="bold red")
_SHOWN = 3


def render(proof: Proof) -> RenderableType:
    """Return the picture of a proof: promises with ticks, crosses and examples, counts, waits, and why it is void."""
    parts: list[RenderableType] = [_promises(proof), _counts(proof)]
    if proof.waits:
        parts.append(_waits(proof))
    parts += [Text(f"void: {reason}", style="red") for reason in proof.void_reasons]
    parts.append(_verdict(proof))
    return Group(*parts)


def _promises(proof: Proof) -> Table:
    table = Table("", "promise", "broken", "for example", title="Promises")
    delivered = f"delivered once (repeats allowed: {proof.duplicates_allowed})"
    rows: tuple[tuple[str, str, Violations], ...] = (
        ("L", "no loss", proof.lost),
        ("D", delivered, Violations.sum((proof.duplicates, proof.deliveries))),
        ("Q", "the cap holds", proof.cap_violations),
        ("P", "priority", proof.priority_inversions),
        ("K", "key order", proof.key_order),
        ("O", "one owner", proof.owners),
        ("M", "each offset one message", proof.offsets),
        ("T", "in time", proof.times),
        ("X", "dead letters once", Violations.sum((proof.dead_twice, proof.deaths))),
    )
    for letter, name, violations in rows:
        more = [f"... and {violations.count - _SHOWN} more"] if violations.count > _SHOWN else []
        table.add_row(
            _TICK if proof.promises[letter] else _CROSS,
            f"{letter}  {name}",
            f"{violations.count:,}",
            Text("\n".join([*violations.examples[:_SHOWN], *more])),
        )
    return table


def _counts(proof: Proof) -> Table:
    table = Table("", "messages", title="Counts")
    table.columns[1].justify = "right"
    queued = "not known" if proof.still_queued is None else f"{proof.still_queued:,}"
    for name in ("published", "merged", "delivered", "dead", "dropped", "lost_by_store", "unfinished", "skipped"):
        table.add_row(name.replace("_", " "), f"{getattr(proof, name):,}")
    table.add_row("delivered, not published here", f"{proof.unknown.count:,}")
    table.add_row("still in the store", queued)
    return table


def _waits(proof: Proof) -> Table:
    table = Table("topic", "first starts", "p50 ms", "p99 ms", title="Wait from publish to start")
    for column in table.columns[1:]:
        column.justify = "right"
    for topic, wait in proof.waits.items():
        table.add_row(Text(topic), f"{wait.count:,}", f"{wait.p50_us / 1e3:,.1f}", f"{wait.p99_us / 1e3:,.1f}")
    return table


def _verdict(proof: Proof) -> Text:
    read = f"{plurals.count(proof.events, 'event')} in {plurals.count(proof.segments, 'segment')}"
    if proof.ok:
        return Text(f"✓ proved from {read}", style="bold green")
    if proof.void_reasons:
        return Text(f"✗ void: the trail is not complete ({read})", style="bold red")
    broken = ", ".join(letter for letter, held in proof.promises.items() if not held)
    return Text(f"✗ broken: {broken} ({read})", style="bold red")

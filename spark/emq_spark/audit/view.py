"""The result of an audit on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from emq.runtime import plurals
from emq_spark.audit.findings import NAMES
from emq_spark.audit.result import Audit

_SHOWN = 3


def render(result: Audit) -> RenderableType:
    """Render the promises with ticks, crosses and a few examples, then counts, notes and the verdict."""
    parts: list[RenderableType] = [_promises(result), _counts(result)]
    parts += [Text(f"note: {note}", style="dim") for note in result.notes]
    parts += [Text(f"void: {flaw}", style="red") for flaw in result.flaws]
    parts.append(_verdict(result))
    return Group(*parts)


def _promises(result: Audit) -> Table:
    table = Table("", "promise", "broken", "for example", title="Promises")
    table.columns[2].justify = "right"
    for letter, name in NAMES.items():
        kinds = [kind for kind in result.kinds if kind.promise == letter and not kind.excused]
        lines = [f"{kind.kind}: {text}" for kind in kinds for text in kind.examples[:_SHOWN]]
        count = result.broken.get(letter, 0)
        if count:
            tick = Text("✗", style="bold red")
        elif letter in result.unjudged:
            tick, lines = Text("?", style="yellow"), [f"not judged: {result.unjudged[letter]}"]
        else:
            tick = Text("✓", style="green")
        table.add_row(tick, f"{letter}  {name}", f"{count:,}", Text("\n".join(lines)))
    return table


def _counts(result: Audit) -> Table:
    table = Table("", "count", title="Counts")
    table.columns[1].justify = "right"
    for name, count in result.counts.items():
        table.add_row(name.replace("_", " "), f"{count:,}")
    return table


def _verdict(result: Audit) -> Text:
    read = f"{plurals.count(result.counts['events'], 'event')} in {plurals.count(result.counts['segments'], 'segment')}"
    if result.broken:
        void = ", and the proof is void" if result.flaws else ""
        return Text(f"✗ broken: {', '.join(result.broken)}{void} ({read})", style="bold red")
    if result.flaws:
        return Text(f"✗ void: trail or ledger is not complete ({read})", style="bold red")
    but = f", but for {', '.join(result.unjudged)}," if result.unjudged else ""
    believed = f"; {result.believed}" if result.believed else ""
    return Text(f"✓ proved{but} from {read}{believed}", style="bold green")

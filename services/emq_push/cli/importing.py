"""`emq push import`: tenants, endpoints and event types of another sender, with their secrets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from emq.runtime import documents, errors
from emq_cli import exit_codes, output
from emq_cli.progress import Bar
from emq_cli.session import ACTOR, Session, fail
from emq_push.cli.push import opened_service

if TYPE_CHECKING:
    from emq_push.moving.carrying import Carrying, Moved
    from emq_push.moving.plan import Note, Plan

Kind = Literal["svix", "convoy", "outpost"]


async def import_(
    session: Session,
    kind: Annotated[Kind, typer.Argument(metavar="FROM", help="svix, convoy or outpost.", show_default=False)],
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The export, as docs/coming-from/ tells how to write it.")
    ],
    qps: Annotated[
        float, typer.Option(help="Most deliveries started in a second, of tenants whose export has none.")
    ] = 100.0,
    signing: Annotated[
        str, typer.Option(metavar="STYLE", help="Style of all signatures. (default: that of the sender)")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be made, and what has no equal.")
    ] = False,
) -> None:
    """Make the tenants, endpoints and event types of an export of another sender. No receiver has to change.

    Endpoints keep their secrets, and requests the headers that receivers check. Safe to repeat: what is there stays.

    Example: emq push import svix export.json --dry-run
    """
    async with opened_service(session, create=True) as (_, service):
        from emq_push.moving.carrying import Carrying

        plan = _read(kind, file, qps, signing)
        tenants = plan.tenants
        with Bar(session, "checking" if dry_run else "importing", sum(len(each.endpoints) for each in tenants)) as bar:
            steps = iter(range(1, 1 << 62))
            carrying = Carrying(service, ACTOR, is_trial=dry_run, on_endpoint=lambda: bar.set(next(steps)))
            try:
                await carrying.add_types(plan.types)
                await carrying.run(tenants)
            except BaseException:  # also Ctrl-C: nothing shows new secrets again
                _tell(session, plan, carrying, dry_run=dry_run)
                raise
    if failed := _tell(session, plan, carrying, dry_run=dry_run):
        fail(f"{output.count(failed, 'entry', 'entries')} of the export cannot be made; see above", exit_codes.FAILED)


def _read(kind: Kind, file: str, qps: float, signing: str) -> Plan:
    """Return what an export becomes. Raises `InvalidMessage`: it is none."""
    from emq_push import signature, styles
    from emq_push.moving import convoy, outpost, svix
    from emq_push.moving.plan import Plan

    reader: Any = {"svix": svix, "convoy": convoy, "outpost": outpost}[kind]
    try:
        found = documents.parsed(Path(file).read_text("utf-8-sig"), "json", file, errors.InvalidMessage)
    except (OSError, UnicodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise errors.InvalidMessage(f"{file!r} cannot be read: {why}") from None
    if not isinstance(found, dict) or reader.NEEDED not in found:
        raise errors.InvalidMessage(
            f"{file!r} has no {reader.NEEDED!r}, so it is no export of {kind}; see docs/coming-from/{kind}.md"
        )
    if not 0 < qps <= 1e6:
        raise errors.InvalidMessage(f"--qps {qps:g} must be above 0, at most 1,000,000")
    if signing:
        try:
            styles.signed(signing, signature.new_secret("hmac"))  # it has the form of any style
        except ValueError as exc:
            raise errors.InvalidMessage(f"--signing: {exc}") from None
    plan = Plan(qps, signing)
    reader.read(found, plan)
    return plan


def _tell(session: Session, plan: Plan, carrying: Carrying, *, dry_run: bool) -> int:
    """Tell what became of an export; return how many entries of it cannot be made."""
    from emq_push.moving.plan import add

    moved = carrying.moved
    made, there = [each for each in moved if each.is_new], [each for each in moved if each.id and not each.is_new]
    failed = dict(plan.failed)
    for name, why in carrying.failed.items():
        add(failed, f"event type {name}", why)
    for each in moved:
        if not each.id and not each.is_new:
            add(failed, f"endpoint {each.source}" if each.source else f"tenant {each.tenant}", each.trouble)
    data = {
        "dry_run": dry_run,
        "tenants": len(plan.tenants),
        "endpoints": [each._asdict() for each in made],
        "event_types": carrying.types,
        "there_already": len(there),
        "failed": failed,
        "notes": [note._asdict() for note in plan.notes],
    }
    counts = [f"{output.count(len(made), 'endpoint')} of {output.count(len(plan.tenants), 'tenant')}"]
    if carrying.types:
        counts.append(output.count(len(carrying.types), "event type"))
    if there:
        counts.append(f"{len(there):,} there already")
    session.say(f"{'would make' if dry_run else 'made'} {', '.join(counts)}", data)
    if not session.json:
        _show(session, plan, made, failed)
    return len(failed)


def _show(session: Session, plan: Plan, made: Sequence[Moved], failed: Mapping[str, str]) -> None:
    for each in made:
        if each.secret:
            session.out.print(output.plain(f"{each.source}: new secret {each.secret}"), soft_wrap=True)
    warnings = [f"warning: {each.source}: {each.trouble}" for each in made if each.trouble]
    for line in [*warnings, *_lines(plan.notes), *(f"{source}: {why}" for source, why in failed.items())]:
        session.err.print(output.plain(line), soft_wrap=True)


def _lines(notes: Sequence[Note]) -> Sequence[str]:
    """Return what has no equal, each text once, with the first sources that it is true of."""
    counts = Counter(note.text for note in notes)
    firsts = {note.text: note.source for note in reversed(notes)}
    return [
        f"{firsts[text] or 'all'}{f' and {count - 1:,} more' if count > 1 and firsts[text] else ''}: {text}"
        for text, count in counts.items()
    ]

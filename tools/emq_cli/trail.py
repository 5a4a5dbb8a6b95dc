"""`emq trail verify`: the proof from a trail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emq_cli import exit_codes
from emq_cli.entry import Room
from emq_cli.extras import needing
from emq_cli.session import Session, command

if TYPE_CHECKING:
    from emq_proof.proof import Expectations

app = typer.Typer(cls=Room, help="Check the trail: the files in which hosts write down the life of every message.")


@command(app, "verify")
async def verify(
    session: Session,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the trail.", show_default=False)],
    catalog: Annotated[
        bool, typer.Option("--catalog", help="Check rates and priorities against the topics' present settings.")
    ] = False,
    duplicates: Annotated[int, typer.Option(min=0, help="Repeated deliveries to allow, if hosts crashed.")] = 0,
) -> None:
    """Check from a trail that EMQ kept its promises: no loss, no rate exceeded, priorities and key order kept.

    Exits with 1 if a promise is broken, with 3 if the trail is not complete and proves nothing. A trail does not hold
    the topics' settings: without --catalog rates are not checked, and priorities are checked as if all topics were
    strict.

    Example: emq trail verify trail/ --catalog
    """
    with needing("emq trail verify", "trail"):
        from emq_proof import proof, report

    expected = proof.Expectations(duplicates_allowed=duplicates)
    if catalog:
        expected = await _expected(session, duplicates)
    found = proof.prove(directory, expected)
    session.show({**found.to_dict(), "caps_judged": catalog}, lambda: report.render(found))
    if not session.json and not catalog:
        session.out.print("rates were not checked; add --catalog to check them against the topics' present limits")
    if not all(found.promises.values()):
        raise typer.Exit(exit_codes.FAILED)
    if not found.ok:
        raise typer.Exit(exit_codes.VOID)


async def _expected(session: Session, duplicates: int) -> Expectations:
    with needing("emq trail verify", "trail"):
        from emq_proof.limits import budgets, limits
        from emq_proof.proof import Expectations

    async with session.app() as opened:
        topics = await opened.catalog.list()
    quotas, bursts = limits(topics)
    return Expectations(
        quotas=quotas,
        bursts=bursts,
        budgets=budgets(topics),
        strict=[t.name for t in topics if t.options.priority_policy == "strict"],
        serial=[t.name for t in topics if t.is_sorted and t.options.ordering == "slot"],
        max_attempts={t.name: t.options.max_attempts for t in topics if t.counts_attempts},
        rejects=[t.name for t in topics if not t.drops_oldest],
        duplicates_allowed=duplicates,
    )

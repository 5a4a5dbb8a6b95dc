"""`emq settings`, `emq trail verify`, `emq demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emq.cli import output
from emq.cli.extras import needing
from emq.cli.session import Session, command

if TYPE_CHECKING:
    from emq.trail.proof import Expectations

trail = typer.Typer(no_args_is_help=True, help="The delivery ledger.")


def settings(
    session: Session,
    defaults: Annotated[bool, typer.Option("--defaults", help="Print a commented file with the defaults.")] = False,
) -> None:
    """Show the settings in force: command line, then EMQ_ variables, then the settings file, then defaults."""
    import msgspec

    from emq import settings as module
    from emq.storage.opening import hide_password

    if defaults:
        typer.echo(module.defaults_file())
        return
    values: dict[str, Any] = msgspec.to_builtins(session.settings)
    values["database"] = session.settings.database_url
    shown = {name: hide_password(value) if isinstance(value, str) else value for name, value in values.items()}
    rows = [(name, value if value != "" else "-", module.DESCRIPTIONS[name]) for name, value in shown.items()]
    session.show(shown, lambda: output.table("", ("setting", "value", "what it is"), rows))


@command(trail, "verify")
async def verify(
    session: Session,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the trail lies.", show_default=False)],
    catalog: Annotated[
        bool, typer.Option("--catalog", help="Judge caps and priorities by the topics as the catalog has them now.")
    ] = False,
    duplicates: Annotated[int, typer.Option(min=0, help="Repeated deliveries that a crash excuses.")] = 0,
) -> None:
    """Prove the promises from a trail. Exits with 1 if one is broken, or the trail is not complete.

    Without --catalog, caps are not judged (a trail does not know them), and priorities as if all topics were strict.
    """
    from emq.trail import proof, report

    expected = proof.Expectations(duplicates_allowed=duplicates)
    if catalog:
        expected = await _expected(session, duplicates)
    found = proof.prove(directory, expected)
    session.show({**found.to_dict(), "caps_judged": catalog}, lambda: report.render(found))
    if not session.json and not catalog:
        session.out.print("caps were not judged; --catalog judges them by the topics' present limits")
    if not found.ok:
        raise typer.Exit(1)


async def _expected(session: Session, duplicates: int) -> Expectations:
    from emq.trail.limits import limits
    from emq.trail.proof import Expectations

    async with session.app() as opened:
        topics = await opened.catalog.list()
    quotas, bursts = limits(topics)
    return Expectations(
        quotas=quotas,
        bursts=bursts,
        strict=[t.name for t in topics if t.options.priority_policy == "strict"],
        serial=[t.name for t in topics if t.is_sorted and t.options.ordering == "slot"],
        max_attempts={t.name: t.options.max_attempts for t in topics if not t.is_sorted},
        rejects=[t.name for t in topics if not t.drops_oldest],
        duplicates_allowed=duplicates,
    )


def demo(
    store: Annotated[str, typer.Option(help="sqlite, memory or redis (a server is started for it).")] = "sqlite",
    seconds: Annotated[
        float, typer.Option(min=4, max=600, help="How long flights are replayed; set-up and proof come on top.")
    ] = 36.0,
    days: Annotated[
        int | None,
        typer.Option(min=1, max=365, help="Days of flights in each half. (default: as many as --seconds allows)"),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep store and trail in this new or empty directory.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Watch real traffic of many tenants go out over HTTP, each at its own limit, and the proof that none was lost."""
    from emq.cli.session import guard

    if store not in ("sqlite", "memory", "redis"):
        raise typer.BadParameter(f"{store!r} is not known; choose sqlite, memory or redis", param_hint="--store")

    def run() -> None:
        with needing("the demo", "demo"):
            from emq.demo import run as module
        raise typer.Exit(min(1, module.main(store=store, json=as_json, seconds=seconds, days=days, keep=keep)))

    guard(run)

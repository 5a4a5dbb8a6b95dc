"""`emq audit`: the offset audit on a Spark of its own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emq.runtime import errors
from emq_cli.extras import needing
from emq_cli.session import Session
from emq_cli.times import given_span_s

if TYPE_CHECKING:
    from emq.topics.model import Topic
    from emq_spark.audit.store import StoreView

_MANY = "May be repeated."


def audit(
    session: Session,
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Directories of the trails.", show_default=False)
    ],
    ledger: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help=f"Directory of a ledger that `emq load` wrote. {_MANY}")
    ] = None,
    run: Annotated[
        list[str] | None, typer.Option(metavar="RUN", help=f"Only this run of `emq load`; '*' for all. {_MANY}")
    ] = None,
    topics: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Check against the topics in this export, not in the catalog. Repeat it if settings were changed: the "
            "highest rates count.",
        ),
    ] = None,
    since: Annotated[
        Path | None,
        typer.Option(
            metavar="STATE", help="Keep progress in this directory, and read only events since the last audit with it."
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a report with charts.")] = None,
    findings: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write every finding into this directory, as Parquet; overwrites it."),
    ] = None,
    crashed: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help=f"This host was killed, so its trail may end abruptly. {_MANY}"),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Hosts still run and write their trails.")] = False,
    purged: Annotated[
        bool, typer.Option("--purged", help="Dead letters were purged; do not count them as lost.")
    ] = False,
    max_skew: Annotated[str, typer.Option(metavar="SPAN", help="Most that the clocks of two hosts differ.")] = "250ms",
    crash_window: Annotated[
        str, typer.Option(metavar="SPAN", help="Time before its end in which a killed host may have saved nothing.")
    ] = "5s",
    cores: Annotated[int, typer.Option(min=1, help="Cores that Spark may use.")] = 2,
    memory: Annotated[str, typer.Option(help="Memory that Spark may use, such as 2g.")] = "2g",
) -> None:
    """Check on Spark that EMQ kept its promises, from ledgers, trails and the store, at any size.

    A trail is the directory in which hosts write down the life of every message; a ledger is the record of one
    `emq load`. If you name a store (--store, EMQ_STORE or the settings file), the audit looks there for unfinished
    messages, and takes the topics' rates from its catalog. Without a store, undelivered messages are only counted.

    Exits with 1 if a promise is broken, with 3 if the evidence is incomplete and proves nothing.

    Example: emq audit trail/ --ledger ledger/ --report audit.html
    """
    from emq.runtime.settings import Settings

    with needing("the audit", "spark"):
        from emq_spark import session as spark_session
        from emq_spark.audit import offset_audit, view
        from emq_spark.audit import report as audit_report
    spark_session.check(cores, memory)
    if report is not None:
        audit_report.check(report)
    skew_s, crash_s = given_span_s(max_skew, "--max-skew"), given_span_s(crash_window, "--crash-window")
    catalogs = [_read_topics(path) for path in topics or ()]
    options = offset_audit.AuditOptions(
        trails=directories,
        ledgers=ledger or (),
        runs=tuple(run or ()),
        state=since,
        crashed=frozenset(crashed or ()),
        live=live,
        purged=purged,
        max_skew_s=skew_s,
        crash_s=crash_s,
    )
    offset_audit.check(options, findings)
    found: tuple[list[Topic], StoreView] | None = None
    if session.settings.store != Settings().store or session.overrides.get("store"):
        import asyncio

        found = asyncio.run(_look(session))
    catalogs = catalogs or ([found[0]] if found else [])
    options = dataclasses.replace(
        options,
        topics=catalogs[0] if catalogs else None,
        earlier=catalogs[1:],
        store=found[1] if found else None,
    )
    with _progress(session) as say:
        say("starting Spark")
        with spark_session.borrowed("emq audit", cores, memory) as spark:
            result = offset_audit.audit(spark, options, findings, say)
    if report is not None:
        audit_report.write(report, result)
    session.show(result.to_dict(), lambda: view.render(result))
    raise typer.Exit(result.exit_status)


async def _look(session: Session) -> tuple[list[Topic], StoreView]:
    from emq_spark.audit import store

    async with session.app() as app:
        return await store.look(app)


def _read_topics(path: Path) -> list[Topic]:
    from emq.topics import catalog_file, model

    fmt = "json" if path.suffix == ".json" else "toml"
    try:
        found = catalog_file.load(path.read_text(), fmt)
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise errors.InvalidSettings(f"topics {str(path)!r} cannot be read ({why}); name an export") from exc
    return [model.split(topic) for topic in found]


@contextlib.contextmanager
def _progress(session: Session) -> Iterator[Callable[[str], None]]:
    """Show the present step in one line on a terminal."""
    if session.json or not session.err.is_terminal:
        yield lambda _: None
        return
    with session.err.status("") as status:
        yield lambda text: status.update(f"{text} ...")

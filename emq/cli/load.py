"""`emq load`: the load generator on a Spark of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emq.cli.extras import needing
from emq.cli.session import Session
from emq.cli.times import SPANS, span_s

if TYPE_CHECKING:
    from spark.load.generator import Progress as Told


def load(
    session: Session,
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="What is to be published.", show_default=False)],
    ledger: Annotated[
        Path, typer.Option(metavar="DIR", help="Write down there what was published.", show_default=False)
    ],
    seed: Annotated[
        int | None, typer.Option(min=0, help="By which the load can be repeated. (default: the plan's, or any)")
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long, such as 90s or 10m. (default: as planned)")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Tasks that publish at once. (default: one for each core)")
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="ID", help="Names the load. (default: name of the plan, and the seed)")
    ] = None,
    unpaced: Annotated[bool, typer.Option("--unpaced", help="As fast as may be, not at the plan's times.")] = False,
    no_create: Annotated[bool, typer.Option("--no-create", help="Do not create topics that are missing.")] = False,
    cores: Annotated[int, typer.Option(min=1, help="Cores that Spark may use.")] = 2,
    memory: Annotated[str, typer.Option(help="Memory that Spark may use, such as 2g.")] = "2g",
) -> None:
    """Publish by a plan, and leave a ledger of it for `emq audit`. Exits with 1 if a message was refused or its outcome
    is unknown.

    The same plan and seed publish the same messages again. Ctrl-C ends the load in order; a load that was cut short is
    gone on with by the same command with the same --seed. On a cluster, use spark-submit: see spark/README.md.

    Example: emq load plan.toml --ledger ledger --store redis://localhost --seed 7
    """
    with needing("the load generator", "spark"):
        from spark import session as spark_session
        from spark.load import generator
        from spark.load import plan as load_plan
        from spark.load import report as load_report

        spark_session.require()
    seconds = None if duration is None else span_s(duration)
    if duration is not None and not seconds:
        raise typer.BadParameter(f"{duration!r} is not a duration; write it as {SPANS}", param_hint="--duration")
    options = generator.LoadOptions(
        load_plan.read(plan),
        session.settings,
        ledger,
        seed=seed,
        run=run,
        duration_s=seconds,
        partitions=partitions,
        paced=not unpaced,
        create=not no_create,
    )
    with _progress(session) as told, spark_session.borrowed("emq load", cores, memory, **spark_session.QUICK) as spark:
        report = generator.run(spark, options, told)
    session.show(report, lambda: load_report.render(report))
    raise typer.Exit(0 if report.ok else 1)


@contextlib.contextmanager
def _progress(session: Session) -> Iterator[Callable[[Told], object]]:
    """A bar, where somebody looks."""
    if session.json or not session.err.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
    with Progress(*columns, TimeElapsedColumn(), console=session.err, transient=True) as bar:
        task = bar.add_task("starting Spark", total=None, told="")

        def tell(progress: Told) -> None:
            failed = f", {progress.failed:,} failed" if progress.failed else ""
            late = f", {progress.late_s:.1f} s late" if progress.late_s >= 0.5 else ""
            told = f"{progress.rows:,} of {progress.total:,} messages{failed}{late}"
            bar.update(task, description="publishing", total=progress.total, completed=progress.rows, told=told)

        yield tell

"""`emq load`: the load generator on a Spark of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emq.runtime import plurals
from emq_cli.extras import needing
from emq_cli.session import Session
from emq_cli.times import given_span_s
from emq_spark.cli import load_view

if TYPE_CHECKING:
    from emq_spark.load.generator import Progress as Told


def load(
    session: Session,
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN.toml",
            help="File with the topics, rates and messages to publish; see spark/README.md.",
            show_default=False,
        ),
    ],
    ledger: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the record of what was published.", show_default=False)
    ],
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="The same seed publishes the same messages. (default: the plan's, or a random one)"),
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="Length of the load, such as 90s or 10m. (default: the plan's)")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Spark tasks that publish side by side. (default: one for each core)")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Name of this load in the ledger. (default: name of the plan, and the seed)"),
    ] = None,
    unpaced: Annotated[
        bool, typer.Option("--unpaced", help="Publish as fast as possible, not at the plan's times.")
    ] = False,
    no_create: Annotated[bool, typer.Option("--no-create", help="Do not create missing topics.")] = False,
    cores: Annotated[int, typer.Option(min=1, help="Cores that Spark may use.")] = 2,
    memory: Annotated[str, typer.Option(help="Memory that Spark may use, such as 2g.")] = "2g",
) -> None:
    """Publish messages on Spark by a plan, and write a ledger, the record of each message, for `emq audit`.

    The same plan and seed publish the same messages again. Ctrl-C stops the load cleanly; to go on with it, give the
    same command with the same --seed. On a cluster, use spark-submit: see spark/README.md.

    Exits with 1 if a message was refused, or if its outcome is unknown.

    Example: emq load plan.toml --ledger ledger --store redis://localhost --seed 7
    """
    with needing("the load generator", "spark"):
        from emq_spark import session as spark_session
        from emq_spark.load import generator, plan_file
    spark_session.check(cores, memory)
    seconds = None if duration is None else given_span_s(duration, "--duration")
    options = generator.LoadOptions(
        plan_file.read(plan),
        session.settings,
        ledger,
        seed=seed,
        run=run,
        duration_s=seconds,
        partitions=partitions,
        paced=not unpaced,
        create=not no_create,
    )
    generator.check(options, cores)
    with _progress(session) as told, spark_session.borrowed("emq load", cores, memory, **spark_session.QUICK) as spark:
        report = generator.run(spark, options, told)
    session.show(report, lambda: load_view.render(report))
    raise typer.Exit(0 if report.ok else 1)


@contextlib.contextmanager
def _progress(session: Session) -> Iterator[Callable[[Told], object]]:
    """Show a progress bar on a terminal."""
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
            told = f"{progress.rows:,} of {plurals.count(progress.total, 'message')}{failed}{late}"
            bar.update(task, description="publishing", total=progress.total, completed=progress.rows, told=told)

        yield tell

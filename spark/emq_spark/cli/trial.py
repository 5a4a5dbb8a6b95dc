"""`emq trial`: start a cluster, kill a host under load, and audit the outcome."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emq_cli.extras import needing
from emq_cli.session import console, guard, print_json
from emq_cli.times import given_span_s

if TYPE_CHECKING:
    from rich.console import RenderableType

    from emq_spark.trial.trial import Trial


def trial(
    plan: Annotated[
        Path | None,
        typer.Argument(
            metavar="PLAN.toml", help="File with the load. (default: three shops, and prices that are merged)"
        ),
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="Length of the load, such as 90s or 10m. (default: the plan's)")
    ] = None,
    hosts: Annotated[int, typer.Option(min=2, max=20, help="Number of hosts at the start; one of them is killed.")] = 2,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed publishes the same messages.")] = None,
    report: Annotated[Path, typer.Option(metavar="FILE.html", help="File for the report with charts.")] = Path(
        "trial.html"
    ),
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep trails, ledger and logs in this new or empty directory.")
    ] = None,
    cores: Annotated[int, typer.Option(min=1, help="Cores that Spark may use.")] = 2,
    memory: Annotated[str, typer.Option(help="Memory that Spark may use, such as 2g.")] = "1g",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Kill a host under load, let another join, and prove that nothing was lost.

    Starts Valkey, ZooKeeper, PostgreSQL (SQLite if PostgreSQL is not installed), hosts and Spark on this machine, and
    stops all of them at the end. Takes about a minute. Exits as `emq audit` does.

    Example: emq trial --report trial.html
    """

    def run() -> None:
        with needing("a trial", "spark,redis,zookeeper"):
            from emq_spark import session as spark_session
            from emq_spark.audit import report as audit_report
            from emq_spark.trial.trial import TrialOptions, claim
            from emq_spark.trial.trial import run as run_trial
        spark_session.check(cores, memory)
        audit_report.check(report)
        with contextlib.ExitStack() as stack:
            directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="emq-trial-")))
            seconds = None if duration is None else given_span_s(duration, "--duration")
            options = TrialOptions(_plan(plan), directory.absolute(), seconds, seed, hosts)
            claim(options.directory)
            say = stack.enter_context(_progress(as_json=as_json))
            say("starting Spark")
            with spark_session.borrowed("emq trial", cores, memory) as spark:
                found = run_trial(spark, options, say)
        audit_report.write(report, found.audit)
        if as_json:
            print_json(_data(found, report))
        else:
            console().print(_render(found, report))
        raise typer.Exit(found.exit_status)

    guard(run)


def _plan(path: Path | None) -> Any:
    from emq_spark.load import plan_file

    return plan_file.read(path or Path(plan_file.__file__).parent / "plans" / "trial.toml")


def _data(found: Trial, report: Path) -> dict[str, object]:
    return {
        "ok": found.exit_status == 0,
        "database": found.database,
        **found.crash._asdict(),
        "load": found.load,
        "audit": found.audit.to_dict(),
        "report": str(report),
    }


def _render(found: Trial, report: Path) -> RenderableType:
    from rich.console import Group

    from emq_cli import output
    from emq_spark.audit import view
    from emq_spark.cli import load_view

    crash = found.crash
    story = (
        f"{crash.killed} was killed with SIGKILL and left {output.count(crash.moved, 'group')} behind, "
        f"all owned again after {crash.back_s:.1f} s; {crash.joined} joined"
    )
    return Group(load_view.render(found.load), story, "", view.render(found.audit), f"report: {report}")


@contextlib.contextmanager
def _progress(*, as_json: bool) -> Iterator[Callable[[str], None]]:
    """Print finished steps to standard error; on a terminal, show the present one in the last line."""
    if as_json:
        yield lambda _: None
        return
    err = console(stderr=True)
    if not err.is_terminal:
        yield lambda text: err.print(text)
        return
    with err.status("") as status:

        def say(text: str) -> None:
            err.print(text, style="dim")
            status.update(f"{text} ...")

        yield say

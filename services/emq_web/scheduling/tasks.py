"""`/v1/pools/{pool}/tasks`."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Annotated, Literal

import fastapi
import pydantic

from emq import errors
from emq_push.records import cursors
from emq_scheduling.records import ends
from emq_scheduling.records.records import Attempt, TaskStatus
from emq_scheduling.submitting import Receipt, Submission
from emq_web import forms, problems, queries
from emq_web.problems import Problem
from emq_web.scheduling import access, schemas, submitted

router = fastapi.APIRouter(prefix="/v1/pools/{pool}/tasks", tags=["tasks"])

TaskId = Annotated[str, fastapi.Path(max_length=256, pattern=r"^[^\x00]+$", description="the task's id")]
Outcome = Literal["running", "done", "dead", "expired", "cancelled", "failed", "lost"]


class TaskReceipt(forms.Shown):
    """A task that was accepted: it is stored."""

    id: str
    wait_s: float | None = pydantic.Field(
        description="predicted seconds until it starts; null if it would not within a day, or no host schedules it"
    )


class TaskOutcome(forms.Shown):
    """What became of one of several tasks: the receipt, or the problem."""

    id: str | None = pydantic.Field(description="null if it was refused")
    wait_s: float | None
    problem: problems.ProblemDetails | None = pydantic.Field(description="null if it was accepted")


class TaskOutcomes(forms.Shown):
    """Tasks in the order of the request."""

    accepted: int
    refused: int
    data: list[TaskOutcome]


class TaskAttempt(forms.Shown):
    """An attempt, or the end of a task that never started."""

    task: str
    type: str
    tenant: str
    key: str | None
    resource: str | None = pydantic.Field(description="null if the task never started")
    attempt: int = pydantic.Field(description="from 1; 0 if the task never started")
    outcome: Outcome
    submitted: datetime.datetime
    started: datetime.datetime = pydantic.Field(description="when it ended, if it never started")
    ended: datetime.datetime | None = pydantic.Field(description="null while it runs")
    deadline: datetime.datetime | None
    wait_s: float = pydantic.Field(description="from submit to start")
    took_s: float | None
    costs: dict[str, float] = pydantic.Field(description="units charged at the start, by limit; 1 of any other limit")
    actual: dict[str, float] | None = pydantic.Field(description="units really used; null if as charged")
    error: str | None
    result: str | None = pydantic.Field(description="the first 4 KiB of what the performer gave back")
    host: str


class TaskShown(forms.Shown):
    """What is known of a task."""

    id: str
    state: Literal["running", "waiting", "done", "dead", "expired", "cancelled", "unknown"] = pydantic.Field(
        description='"waiting", also for another attempt; "unknown": somebody asked to cancel it, and it is not found'
    )
    cancel_asked: bool
    result: str | None = pydantic.Field(description="of the attempt that did it")
    attempts: list[TaskAttempt] = pydantic.Field(description="the first one first")


class TaskPage(forms.Shown):
    """Attempts and ends, the latest start first."""

    data: list[TaskAttempt]
    next: str | None = pydantic.Field(description="cursor of the next page; null on the last one")


class CancelShown(forms.Shown):
    """A task that somebody wants cancelled."""

    id: str
    cancel_asked: bool = pydantic.Field(description="if it waits, it ends as cancelled within about a second")


def _attempt(of: Attempt) -> TaskAttempt:
    return TaskAttempt(
        task=of.task,
        type=of.type,
        tenant=of.tenant,
        key=of.key or None,
        resource=of.resource or None,
        attempt=of.attempt,
        outcome=of.outcome,  # type: ignore[arg-type]
        submitted=forms.time(of.submitted_us),
        started=forms.time(of.started_us),
        ended=forms.time_or_none(of.ended_us),
        deadline=forms.time_or_none(of.deadline_us),
        wait_s=of.wait_s,
        took_s=(of.ended_us - of.started_us) / 1e6 if of.ended_us else None,
        costs=dict(of.costs),
        actual=None if of.actual is None else dict(of.actual),
        error=of.error or None,
        result=_text(of.result),
        host=of.host,
    )


def _text(result: bytes) -> str | None:
    return result.decode("utf-8", "replace") if result else None


def _task(of: TaskStatus) -> TaskShown:
    done = [each for each in of.attempts if each.outcome == ends.DONE]
    return TaskShown(
        id=of.task,
        state=of.state,  # type: ignore[arg-type]
        cancel_asked=of.cancel_asked,
        result=_text(done[-1].result) if done else None,
        attempts=[_attempt(each) for each in of.attempts],
    )


@router.post(
    "",
    status_code=202,
    responses={202: {"model": TaskReceipt | TaskOutcomes, "description": "stored; of several tasks, each by itself"}},
    openapi_extra=schemas.body(submitted.SCHEMA),
)
async def submit_tasks(
    pool: access.PoolName, request: fastapi.Request, desk: access.Desk, _: access.Submitter
) -> TaskReceipt | TaskOutcomes:
    """Submit one task, or up to 500 at once. What the answer accepts is stored.

    A single task that the pool does not take is refused as a problem: with 422 `unknown_type` and `cost_above_limit`,
    with 409 `no_able_resource` and `deadline`. Of several tasks, each has its own receipt or problem.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, "", "send the tasks as application/json")
    bodies, is_single = submitted.read(await request.body())
    given: list[Submission | errors.EMQError] = []
    for body in bodies:
        try:
            given.append(body.submission())
        except (errors.InvalidPool, errors.InvalidMessage) as exc:
            given.append(exc)
    sent = iter(await desk.submit(pool, [each for each in given if isinstance(each, Submission)]))
    found = [next(sent) if isinstance(each, Submission) else each for each in given]
    if is_single or all(_is_unavailable(each) for each in found):
        first = found[0]
        if isinstance(first, Receipt) and is_single:
            return TaskReceipt(id=first.id, wait_s=_finite(first.wait_s))
        if isinstance(first, errors.EMQError):
            raise first
    return _outcomes(found)


def _outcomes(found: Sequence[Receipt | errors.EMQError]) -> TaskOutcomes:
    accepted = sum(isinstance(each, Receipt) for each in found)
    return TaskOutcomes(accepted=accepted, refused=len(found) - accepted, data=[_outcome(each) for each in found])


def _outcome(of: Receipt | errors.EMQError) -> TaskOutcome:
    if isinstance(of, Receipt):
        return TaskOutcome(id=of.id, wait_s=_finite(of.wait_s), problem=None)
    return TaskOutcome(
        id=None,
        wait_s=_finite(of.wait_s) if isinstance(of, errors.TaskRefused) else None,
        problem=problems.details(problems.of_error(of)),
    )


def _is_unavailable(outcome: Receipt | errors.EMQError) -> bool:
    return isinstance(outcome, errors.EMQError) and problems.of_error(outcome).status == 503


def _finite(wait_s: float | None) -> float | None:
    return None if wait_s is None or wait_s == float("inf") else wait_s


@router.get("")
async def list_tasks(
    pool: access.PoolName,
    desk: access.Desk,
    _: access.Submitter,
    limit: forms.Limit = forms.DEFAULT_LIMIT,
    cursor: forms.Cursor = "",
    resource: Annotated[queries.Text, fastapi.Query(description="only on this resource")] = "",
    type: Annotated[queries.Text, fastapi.Query(description="only of this task type")] = "",
    outcome: Annotated[Outcome | None, fastapi.Query(description="only with this outcome")] = None,
) -> TaskPage:
    """List attempts, and tasks that ended without one, the latest start first."""
    await desk.check_known(pool)
    of = f"tasks {pool} {resource} {type} {outcome}"
    before: tuple[int | None, str] = (None, "")
    if cursor:
        at, task = cursors.decode_marked(of, cursor, int, str)
        before = int(at), str(task)
    rows = await desk.records.latest(
        pool,
        limit=limit + 1,
        resource=resource,
        task_type=type,
        outcome=outcome or "",
        before_us=before[0],
        before_task=before[1],
    )
    page = cursors.page(rows, limit, lambda row: (cursors.mark(of), row.started_us, row.task))
    return TaskPage(data=[_attempt(row) for row in page.rows], next=page.next or None)


@router.get("/{task:path}")
async def get_task(
    pool: access.PoolName,
    task: TaskId,
    desk: access.Desk,
    _: access.Submitter,
    type: Annotated[queries.Text, fastapi.Query(description="the task's type, if the pool has many tenants")] = "",
    tenant: Annotated[queries.Text, fastapi.Query(description="the task's tenant, if the pool has many")] = "",
) -> TaskShown:
    """Show what is known of a task, with its attempts and its result.

    A task that waits is seen for 10 minutes after its submit, however many others wait, and later if it is among the
    first 10,000. Give `type` and `tenant` for a pool with more than 100 of them together: else only tasks without a
    tenant are seen to wait.
    """
    return _task(await desk.status(pool, task, type, tenant))


@router.post("/{task:path}:cancel", status_code=202)
async def cancel_task(pool: access.PoolName, task: TaskId, desk: access.Desk, _: access.Submitter) -> CancelShown:
    """Ask for a task not to be started. One that runs already goes on."""
    await desk.cancel(pool, task)
    return CancelShown(id=task, cancel_asked=True)

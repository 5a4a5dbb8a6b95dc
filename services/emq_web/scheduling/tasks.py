"""`/v1/pools/{pool}/tasks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import fastapi
import msgspec
import pydantic
from msgspec import Meta

from emq.runtime import errors
from emq.topics.model import MAX_DELAY_S
from emq_clients.pools import answers
from emq_clients.requests import Page
from emq_push.records import cursors
from emq_push.records.endpoints import END
from emq_push.service.incoming import MOST, Id, Key
from emq_scheduling import fallbacks, given
from emq_scheduling.pools import values
from emq_scheduling.records import ends
from emq_scheduling.records.records import Attempt, TaskStatus
from emq_scheduling.submission import Receipt, Submission
from emq_web import forms, models, parameters, problems
from emq_web.one_or_many import OneOrMany
from emq_web.scheduling import access, schemas

router = models.Router(prefix="/v1/pools/{pool}/tasks", tags=["tasks"])

TaskId = Annotated[str, fastapi.Path(max_length=256, pattern=r"^[^\x00]+$", description="the task's id")]
Outcome = Literal["running", "done", "dead", "expired", "cancelled", "failed", "lost"]


models.answer(answers.TaskReceipt, "TaskReceipt")
models.answer(answers.Attempt, "TaskAttempt")
models.answer(Page[answers.Attempt], "TaskPage")
models.answer(answers.TaskStatus, "TaskShown")
models.answer(answers.CancelAsked, "CancelShown")


Units = Annotated[float, Meta(ge=0, le=1e15)]
Label = Annotated[str, Meta(min_length=1, max_length=values.MAX_LABEL_BYTES)]
Entry = Annotated[str, Meta(min_length=1, max_length=values.MAX_NAME_BYTES + 1 + values.MAX_LABEL_BYTES)]


class TaskBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A task.

    Attributes:
        payload: JSON, handed to the performer byte by byte as it was given.
        id: the caller's own; None to have one made. Repeat a request with the same id after an answer 503.
        tenant: tenants with waiting tasks share the resources by their weights; empty for none.
        key: tasks of one type, tenant and key run one at a time, in order.
        deadline_s: seconds within which the task must have been done, instead of the type's `longest_wait_s`.
        zone: the recipient's time zone, by which the hours of the type count.
        costs: units by limit name that it is charged at its start, instead of those of its type.
        keep: let tasks of the key keep to one resource while that has room soon.
        reply_to: a topic to which the result is published.
        keys: values by name, by which the pool's limits by key count it.
        tries: types and resources to try one after the other, such as `["large@a", "large@b", "small"]`; the first is
            of the task's own type. An entry is TYPE, TYPE@RESOURCE or @RESOURCE.
        patience_s: with `tries`, seconds that it waits for room at each of them before it goes on; None for ever.
    """

    type: Annotated[str, Meta(min_length=1, max_length=values.MAX_NAME_BYTES)]
    payload: msgspec.Raw
    id: Id | None = None
    tenant: Annotated[str, Meta(max_length=values.MAX_TENANT_BYTES)] = ""
    key: Key | None = None
    deadline_s: Annotated[float, Meta(gt=0, le=MAX_DELAY_S)] | None = None
    zone: Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9_+/-]+" + END)] | None = None
    costs: Annotated[dict[Label, Units], Meta(max_length=20)] | None = None
    keep: bool = False
    reply_to: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x20\x7f]+" + END)] | None = None
    keys: Annotated[dict[Label, Label], Meta(max_length=given.MAX_KEYS)] | None = None
    tries: Annotated[list[Entry], Meta(min_length=1, max_length=fallbacks.MOST)] | None = None
    patience_s: Annotated[float, Meta(ge=0, le=MAX_DELAY_S)] | None = None

    def submission(self) -> Submission:
        """Return the task to submit."""
        return Submission(**{**msgspec.structs.asdict(self), "payload": bytes(self.payload)})


class Tasks(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Tasks of one request."""

    tasks: Annotated[list[TaskBody], Meta(min_length=1, max_length=MOST)]


BODIES = OneOrMany(TaskBody, Tasks, "tasks")


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


def _attempt(of: Attempt) -> answers.Attempt:
    return forms.shown(
        answers.Attempt,
        of,
        took_s=(of.ended_us - of.started_us) / 1e6 if of.ended_us else None,
        result=_text(of.result),
    )


def _text(result: bytes) -> str | None:
    return result.decode("utf-8", "replace") if result else None


def _task(of: TaskStatus) -> answers.TaskStatus:
    done = [each for each in of.attempts if each.outcome == ends.DONE]
    return answers.TaskStatus(
        id=of.task,
        state=of.state,
        cancel_asked=of.cancel_asked,
        result=_text(done[-1].result) if done else None,
        progress=msgspec.json.decode(of.progress) if of.progress else None,
        told=forms.time_or_none(of.told_us),
        attempts=[_attempt(each) for each in of.attempts],
    )


@router.post(
    "",
    status_code=202,
    response_description="stored; of several tasks, each by itself",
    openapi_extra=schemas.body(BODIES.schema()),
)
async def submit_tasks(of: access.PoolReader, request: fastapi.Request) -> answers.TaskReceipt | TaskOutcomes:
    """Submit one task, or up to 500 at once. What the answer accepts is stored.

    A single task that the pool does not take is refused as a problem: with 422 `unknown_type` and `cost_above_limit`,
    with 409 `no_able_resource` and `deadline`. Of several tasks, each has its own receipt or problem.
    """
    problems.check_json(request.headers.get("content-type", ""), "the tasks")
    bodies, is_single = BODIES.read(await request.body())
    found = await of.desk.submit(of.pool, [body.submission() for body in bodies])
    if is_single or all(_is_unavailable(each) for each in found):
        first = next((each for each in found if isinstance(each, errors.OutcomeUnknown)), found[0])
        if isinstance(first, Receipt) and is_single:
            return answers.TaskReceipt(id=first.id, wait_s=_finite(first.wait_s))
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
    of: access.PoolReader,
    at: forms.ListAt,
    resource: Annotated[parameters.Text, fastapi.Query(description="only on this resource")] = "",
    type: Annotated[parameters.Text, fastapi.Query(description="only of this task type")] = "",
    outcome: Annotated[Outcome | None, fastapi.Query(description="only with this outcome")] = None,
) -> Page[answers.Attempt]:
    """List attempts, and tasks that ended without one, the latest start first."""
    await of.desk.check_known(of.pool)
    listed = f"tasks {of.pool} {resource} {type} {outcome}"
    before: tuple[int | None, str] = (None, "")
    if at.cursor:
        started_us, task = cursors.decode_marked(listed, at.cursor, int, str)
        before = int(started_us), str(task)
    rows = await of.desk.records.latest(
        of.pool,
        limit=at.limit + 1,
        resource=resource,
        task_type=type,
        outcome=outcome or "",
        before_us=before[0],
        before_task=before[1],
    )
    page = cursors.page(rows, at.limit, lambda row: (cursors.mark(listed), row.started_us, row.task))
    return forms.page(page, _attempt)


@router.get("/{task:path}")
async def get_task(
    task: TaskId,
    of: access.PoolReader,
    type: Annotated[parameters.Text, fastapi.Query(description="the task's type, if the pool has many tenants")] = "",
    tenant: Annotated[parameters.Text, fastapi.Query(description="the task's tenant, if the pool has many")] = "",
) -> answers.TaskStatus:
    """Show what is known of a task, with its attempts and its result.

    A task that waits is seen for 10 minutes after its submit, however many others wait, and later if it is among the
    first 10,000. Give `type` and `tenant` for a pool with more than 100 of them together: else only tasks without a
    tenant are seen to wait.
    """
    return _task(await of.desk.status(of.pool, task, type, tenant))


@router.post("/{task:path}:cancel", status_code=202)
async def cancel_task(task: TaskId, of: access.PoolReader) -> answers.CancelAsked:
    """Ask for a task not to be started. One that runs already goes on."""
    await of.desk.cancel(of.pool, task)
    return answers.CancelAsked(id=task, cancel_asked=True)

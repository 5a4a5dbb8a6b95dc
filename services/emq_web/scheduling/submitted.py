"""Reads and checks the body of a POST of tasks, and describes it for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from emq.topics.model import MAX_DELAY_S
from emq_push.records.endpoints import END
from emq_push.service.incoming import MOST, Id, Key
from emq_scheduling.pools import rules
from emq_scheduling.submitting import Submission
from emq_web.one_or_many import OneOrMany

Units = Annotated[float, Meta(ge=0, le=1e15)]
Label = Annotated[str, Meta(min_length=1, max_length=rules.MAX_LABEL_BYTES)]


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
    """

    type: Annotated[str, Meta(min_length=1, max_length=rules.MAX_NAME_BYTES)]
    payload: msgspec.Raw
    id: Id | None = None
    tenant: Annotated[str, Meta(max_length=rules.MAX_TENANT_BYTES)] = ""
    key: Key | None = None
    deadline_s: Annotated[float, Meta(gt=0, le=MAX_DELAY_S)] | None = None
    zone: Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9_+/-]+" + END)] | None = None
    costs: Annotated[dict[Label, Units], Meta(max_length=20)] | None = None
    keep: bool = False
    reply_to: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x20\x7f]+" + END)] | None = None

    def submission(self) -> Submission:
        """Return the task to submit."""
        return Submission(**{**msgspec.structs.asdict(self), "payload": bytes(self.payload)})


class Tasks(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Tasks of one request."""

    tasks: Annotated[list[TaskBody], Meta(min_length=1, max_length=MOST)]


BODIES = OneOrMany(TaskBody, Tasks, "tasks")

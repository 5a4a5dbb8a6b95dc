"""A task for performers, and its form in a message."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from emq.storage.message import Message
from emq_scheduling.fallbacks import Tries
from emq_scheduling.model import Costs

HEADER = "emq-task"
"""Header of a message with the fields of a task beside its payload; absent if there are none."""


NOT_NOW = "not now: "
"""Begin of the reasons for which a task goes back to the store for a while, without an attempt."""


class Carried(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the header, as JSON. Fields as those of `Task`."""

    deadline: float | None = None
    zone: str | None = None
    costs: Costs | None = None
    keep: bool = False
    reply_to: str | None = None
    keys: dict[str, str] | None = None
    tries: Tries | None = None


class Task(msgspec.Struct, frozen=True):
    """A task.

    Attributes:
        id: unique, also over attempts; a performer recognises repeats by it.
        pool, type, tenant: names; `tenant` is empty for a task of none. A task with fallbacks has the type as which it
            runs now.
        key: tasks of one type, tenant and key run one at a time, in order; None for a task without a key.
        payload: as submitted.
        attempt: 1 for the first attempt.
        submitted_us: when it was submitted, in microseconds since the epoch.
        deadline: when it should have started at the latest, in seconds since the epoch; None without a deadline.
        zone: the recipient's time zone, by which the hours of its type count; None for the pool's.
        costs: its charges at the start, by limit; None for its type's costs.
        keep: tasks of its key keep to one resource while that has room soon.
        reply_to: the topic to which its result is published; None for none.
        keys: values by name, by which limits by key count it; None for none.
        tries: its fallbacks, and where it stands among them; None for none.
    """

    id: str
    pool: str
    type: str
    tenant: str
    key: str | None
    payload: bytes
    attempt: int
    submitted_us: int
    deadline: float | None = None
    zone: str | None = None
    costs: Costs | None = None
    keep: bool = False
    reply_to: str | None = None
    keys: dict[str, str] | None = None
    tries: Tries | None = None

    @property
    def own_type(self) -> str:
        """The type as which it was submitted."""
        return self.type if self.tries is None else self.tries.own_type


def topic_of(pool: str, task_type: str, tenant: str) -> str:
    """Return the name of the topic in which tasks wait."""
    return f"{pool}.{task_type}.{tenant}" if tenant else f"{pool}.{task_type}"


def headers_of(carried: Carried) -> dict[str, str] | None:
    """Return the headers of a message; None if nothing is to be carried."""
    return None if carried == _NOTHING else {HEADER: _encode(carried).decode()}


def with_tries(headers: Mapping[str, str] | None, tries: Tries) -> dict[str, str]:
    """Return the headers of a message with these fallbacks instead of its own."""
    headers = dict(headers or {})
    return {**headers, HEADER: _encode(msgspec.structs.replace(_decode(headers[HEADER]), tries=tries)).decode()}


def tries_of(message: Message) -> Tries | None:
    """Return the fallbacks of a task's message, and how far it came; None for none, or for a header of others."""
    try:
        return _decode((message.headers or {})[HEADER]).tries
    except (KeyError, ValueError):
        return None


def standing(task: Task, place: int, reached: int | None) -> Task:
    """Return a task as it stands at an entry of its fallbacks; `reached` as in `Tries`."""
    assert task.tries is not None
    tries = msgspec.structs.replace(task.tries.to(place, task.attempt - 1), least=task.tries.at, reached=reached)
    return msgspec.structs.replace(task, type=tries.type(place), tries=tries)


def task_of(message: Message, longest_wait_s: float | None) -> Task:
    """Return the task of a message.

    Args:
        longest_wait_s: the one of its type, as seconds.

    Raises:
        ValueError: the header is not one that `headers_of` wrote.
    """
    pool, _, rest = message.topic.partition(".")
    task_type, _, tenant = rest.partition(".")
    header = None if message.headers is None else message.headers.get(HEADER)
    carried = _NOTHING if header is None else _decode(header)
    deadline = carried.deadline
    if deadline is None and longest_wait_s is not None:
        deadline = message.published_us / 1e6 + longest_wait_s
    return Task(
        message.id,
        pool,
        task_type,
        tenant,
        message.key,
        message.payload,
        _attempt(message),
        message.published_us,
        deadline,
        carried.zone,
        carried.costs,
        carried.keep,
        carried.reply_to,
        carried.keys,
        carried.tries,
    )


def _attempt(message: Message) -> int:
    """Return the number of the attempt, from 1, without deliveries at which no resource took the task.

    A message keeps only the reasons of its last failures; of earlier ones the same share counts.
    """
    reasons = [reason for _, reason in message.history or ()]
    if not reasons:
        return message.attempt
    attempts = sum(not reason.startswith(NOT_NOW) for reason in reasons)
    former = max(0, message.attempt - 1 - len(reasons))
    return 1 + attempts + former * attempts // len(reasons)


_NOTHING = Carried()
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Carried).decode

"""The clients of the API have each operation that it documents, and no field that it does not show."""

from __future__ import annotations

import contextlib
import datetime
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from emq.runtime import errors
from emq.topics.families import Bounds
from emq_clients import AsyncPoolClient, AsyncPushClient, PoolClient, PushClient
from emq_clients.pools import answers as of_pools
from emq_clients.pools import operations as pool_operations
from emq_clients.push import catalogue, cluster, messages, polling
from emq_clients.push import operations as push_operations
from emq_push.endpoint import Batch
from emq_push.records.event_types import EventTypeSettings
from emq_push.service.incoming import Incoming
from emq_push.service.topic_fields import Auth
from emq_scheduling.model import Resource
from emq_web.scheduling.tasks import TaskBody
from support import api_operations

PUSH = {}
for _module in (push_operations, messages, catalogue, cluster, polling):
    PUSH |= api_operations.of(_module, {"message"})
POOLS = api_operations.of(pool_operations, {"task"})
SAMPLES: dict[str, Any] = {
    **dict.fromkeys(("tenant", "family", "endpoint", "message", "delivery", "replay", "key", "event_type"), "x"),
    **dict.fromkeys(("pool", "resource", "name", "task", "task_type", "cursor", "idempotency_key", "outcome"), "x"),
    **dict.fromkeys(("priority", "reason", "secret", "signature", "signing", "state", "topic"), "x"),
    **dict.fromkeys(("actor", "action", "after", "target"), "x"),
    **{key: {} for key in ("arrivals", "auth", "batch", "changes", "filter", "payload", "value", "waiting")},
    **{key: [] for key in ("messages", "limits", "tasks", "event_types")},
    **dict.fromkeys(("created_gte", "created_lt", "died_gte", "died_lt"), datetime.datetime.now(datetime.UTC)),
    **dict.fromkeys(("horizon_s", "lifetime_s", "limit", "overlap_s", "qps", "rate_per_s", "version", "wait_s"), 1),
    **dict.fromkeys(("force", "keep_made"), True),
    "bounds": Bounds(),
    "ids": ["x"],
    "check": "known",
    "origin": "events.example.com",
    "role": "read",
    "table": "resources",
    "template": {"text.$": "$.name"},
    "url": "https://hooks.example/in",
}
WRITTEN_TWICE: dict[type[msgspec.Struct], str] = {
    of_pools.TaskOutcomes: "TaskOutcomes", of_pools.TaskOutcome: "TaskOutcome", of_pools.Problem: "ProblemDetails",
}  # fmt: skip
"""By struct of a client: the schema of the API, where the API does not make it from the struct."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return api_operations.documented()


@pytest.mark.parametrize(
    ("of", "operations"), [(AsyncPushClient, PUSH), (PushClient, PUSH), (AsyncPoolClient, POOLS), (PoolClient, POOLS)]
)
def test_each_client_has_every_operation(of: type, operations: dict[str, api_operations.Operation]) -> None:
    for name, operation in operations.items():
        method = getattr(of, name)
        assert method.__doc__ == operation.__doc__
        assert method.__wrapped__ is operation


@pytest.mark.parametrize("operation", [*PUSH.values(), *POOLS.values()], ids=[*PUSH, *POOLS])
def test_each_operation_sends_what_the_api_takes_and_reads_what_it_answers(
    document: dict[str, Any], operation: api_operations.Operation
) -> None:
    samples = SAMPLES | {"pool": {"name": "x"}} if operation is pool_operations.put_pool else SAMPLES
    kind, shown = api_operations.answered(document, operation, samples)
    if kind is type(None):
        assert shown == []
    else:
        assert any(api_operations.reads(document, kind, name) for name in shown)


def test_each_documented_operation_is_one_of_a_client(document: dict[str, Any]) -> None:
    tables = [SAMPLES | {"table": table} for table in get_args(pool_operations.Table)]
    wide = [*tables, SAMPLES | {"tenant": None}, SAMPLES | {"pool": {"name": "x"}}]  # of all tenants; a whole pool
    found: set[tuple[str, str]] = set()
    for operation in [*PUSH.values(), *POOLS.values()]:
        for samples in wide:
            with contextlib.suppress(TypeError, errors.InvalidPool):  # they do not suit the operation
                found.update(api_operations.places(document, api_operations.requested(operation, samples)))
    known = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert known - found == set()


def test_what_is_written_twice_has_the_same_fields(document: dict[str, Any]) -> None:
    assert api_operations.unknown_fields(document, WRITTEN_TWICE) == {}


@pytest.mark.parametrize(
    ("given", "taken", "besides"),
    [
        (push_operations.Auth, Auth, ()),
        (push_operations.Batch, Batch, ()),
        (messages.MessageFields, Incoming, ("event_type", "payload")),
        (catalogue.EventTypeFields, EventTypeSettings, ()),
        (pool_operations.TaskFields, TaskBody, ("type", "payload")),
    ],
)
def test_a_client_gives_the_fields_that_the_api_takes(given: type, taken: type, besides: tuple[str, ...]) -> None:
    assert {*get_type_hints(given), *besides} == set(get_type_hints(taken))


def test_what_null_would_not_say_is_said_otherwise() -> None:
    family = cluster.create_family("mail.*", qps=5, idle_s=None).body or b""
    assert msgspec.json.decode(family)["idle_s"] == "none"
    assert pool_operations.put_pool({"name": "sms"}, version=0).headers["If-None-Match"] == "*"
    escaped = pool_operations.put_entry("sms", "resources", "east/2", Resource(takes={"a": {}}), version=3)
    assert (escaped.path, escaped.headers["If-Match"]) == ("/v1/pools/sms/resources/east%2F2", '"3"')
    assert msgspec.json.decode(escaped.body or b"")["takes"] == {"a": {}}

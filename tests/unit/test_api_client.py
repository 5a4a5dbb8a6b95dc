"""The clients of the API have each operation that it documents, and no field that it does not show."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import emq_clients as api_client
from emq_clients import AsyncPoolClient, AsyncPushClient, PoolClient, PushClient
from emq_clients.pools import answers as of_pools
from emq_clients.pools import operations as pool_operations
from emq_clients.push import cluster
from emq_push import client
from emq_push.client import answers as of_push
from emq_push.client import operations as push_operations
from support import api_operations

PUSH = api_operations.of(push_operations, {"message"}) | api_operations.of(cluster, ())
POOLS = api_operations.of(pool_operations, {"task"})
SAMPLES: dict[str, Any] = {
    **dict.fromkeys(("tenant", "endpoint", "message", "delivery", "replay", "key", "event_type"), "x"),
    **dict.fromkeys(("pool", "resource", "name", "task", "task_type"), "x"),
    **{name: {} for name in ("payload", "filter", "value", "changes")},
    **{name: [] for name in ("messages", "limits", "tasks")},
    "ids": ["x"],
    "origin": "events.example.com",
    "qps": 1.0,
    "role": "read",
    "table": "resources",
    "url": "https://hooks.example/in",
}
SHOWN: dict[type[msgspec.Struct], str] = {
    of_push.Tenant: "TenantShown", of_push.Endpoint: "EndpointMade", of_push.Receipt: "ReceiptShown",
    of_push.StoredMessage: "MessageWhole", of_push.Delivery: "DeliveryWithAttempts", of_push.Hold: "HoldShown",
    of_push.Attempt: "AttemptShown", of_push.Replay: "ReplayShown", of_push.Counted: "Counted",
    of_push.EndpointLag: "EndpointLagShown", of_push.Rate: "RateShown", of_push.Key: "KeyMade",
    of_push.Handshake: "HandshakeShown", of_push.Example: "ExampleShown", of_push.Erased: "Erased",
    of_push.DeadLetter: "LetterShown", of_push.DeadLetterCount: "LetterCount",
    of_push.ReplayedLetters: "Replayed", of_push.Purged: "PurgedShown", of_push.AuditEntry: "EntryShown",
    of_push.Batch: "BatchShown", of_push.Host: "HostShown", of_push.Hosts: "Hosts", of_push.Plan: "PlanShown",
    of_push.PlannedHost: "PlannedHostShown", of_push.Trace: "TraceShown", of_push.Line: "LineShown",
    of_push.Reason: "ReasonShown",
    of_pools.PoolSummary: "PoolSummary", of_pools.StoredPool: "PoolShown", of_pools.Entry: "PartChanged",
    of_pools.EntryDeleted: "PartDeleted", of_pools.Problem: "ProblemDetails", of_pools.TaskReceipt: "TaskReceipt",
    of_pools.TaskOutcome: "TaskOutcome", of_pools.TaskOutcomes: "TaskOutcomes", of_pools.Attempt: "TaskAttempt",
    of_pools.TaskStatus: "TaskShown", of_pools.CancelAsked: "CancelShown", of_pools.LimitNow: "LimitNow",
    of_pools.ResourceNow: "ResourceNow", of_pools.WaitsNow: "WaitsNow", of_pools.TypeNow: "TypeNow",
    of_pools.Snapshot: "SnapshotShown", of_pools.TypeForecast: "TypeForecastShown",
    of_pools.Forecast: "ForecastShown", of_pools.WhatIf: "WhatIfShown",
}  # fmt: skip
"""By struct of a client: the schema of the API's document."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return api_operations.documented()


@pytest.mark.parametrize("operation", [*PUSH.values(), *POOLS.values()], ids=[*PUSH, *POOLS])
def test_the_api_has_every_operation(document: dict[str, Any], operation: api_operations.Operation) -> None:
    samples = SAMPLES | {"pool": {"name": "x"}} if operation is pool_operations.put_pool else SAMPLES
    assert len(api_operations.documented_at(document, operation, samples)) == 1


@pytest.mark.parametrize(
    ("of", "operations"), [(AsyncPushClient, PUSH), (PushClient, PUSH), (AsyncPoolClient, POOLS), (PoolClient, POOLS)]
)
def test_each_client_has_every_operation(of: type, operations: dict[str, api_operations.Operation]) -> None:
    for name, operation in operations.items():
        method = getattr(of, name)
        assert method.__doc__ == operation.__doc__
        assert method.__wrapped__ is operation


def test_answers_know_only_fields_that_the_api_has(document: dict[str, Any]) -> None:
    assert api_operations.unknown_fields(document, SHOWN) == {}


def test_the_push_service_has_its_client_under_its_own_name() -> None:
    assert client.PushClient is api_client.PushClient
    assert client.AsyncPushClient is api_client.AsyncPushClient
    assert client.PushError is api_client.ApiError

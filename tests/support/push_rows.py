"""Rows of the push service, made by the thousand for tests."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from emq_push.records import deliveries, tables

START_US = 1_700_000_000_000_000
STATES = (deliveries.DELIVERED, deliveries.DELIVERED, deliveries.DELIVERED, deliveries.PENDING, deliveries.DEAD)


def fill(
    connection: sa.Connection,
    tenant: str,
    n: int,
    *,
    endpoints: int = 4,
    states: Sequence[str] = STATES,
    environment: str = "online",
) -> None:
    """Write `n` messages of a tenant, each with one delivery; states and endpoints take turns.

    Ten messages share each moment; seven keys take turns. Every hundredth is of the event type `rare.one`, the others
    of `order.paid`.
    """
    messages, rows = [], []
    for i in range(n):
        id_, created_us = f"m{i:07d}", START_US + i // 10 * 1_000_000
        messages.append(
            {
                "environment": environment,
                "tenant": tenant,
                "message": id_,
                "event_type": "rare.one" if i % 100 == 0 else "order.paid",
                "key": f"key-{i % 7}",
                "created_us": created_us,
                "expires_us": created_us + 10**13,
                "payload": b"{}",
                "body": "{}",
            }
        )
        state = states[i % len(states)]
        rows.append(
            {
                "environment": environment,
                "topic": f"{tenant}.ep_{i % endpoints}",
                "message": id_,
                "tenant": tenant,
                "created_us": created_us,
                "state": state,
                "attempts": 0 if state == deliveries.PENDING else 1,
                "status": 0,
                "reason": "",
                "next_us": 0,
                "settled_us": 0 if state == deliveries.PENDING else created_us + 1,
            }
        )
    for start in range(0, n, 5_000):
        connection.execute(sa.insert(tables.messages), messages[start : start + 5_000])
        connection.execute(sa.insert(tables.deliveries), rows[start : start + 5_000])

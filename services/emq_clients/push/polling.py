"""Operations of polling endpoints: fetch messages, and acknowledge them."""

from __future__ import annotations

from emq_clients.push import answers
from emq_clients.requests import Page, Request, body, path


def poll(
    tenant: str, endpoint: str, *, after: str | None = None, limit: int | None = None, wait_s: float | None = None
) -> Request[Page[answers.PolledMessage]]:
    """Return the next messages in the log of an endpoint with the URL `poll:`; the page is empty if none came.

    Args:
        after: cursor of the last message that you have; left out, begin with the oldest that is not acknowledged.
        limit: most messages, 1 to 500; left out, 100.
        wait_s: seconds to wait for the first message, 0 to 20; left out, 0. Less than the client's time-out.
    """
    where = path("tenants", tenant, "endpoints", endpoint, "poll", after=after, limit=limit, wait_s=wait_s)
    return Request("GET", where, Page[answers.PolledMessage])


def acknowledge(tenant: str, endpoint: str, cursor: str) -> Request[answers.Acknowledged]:
    """Settle all messages up to the cursor of one of them. Safe to repeat."""
    return Request(
        "POST",
        path("tenants", tenant, "endpoints", f"{endpoint}:acknowledge"),
        answers.Acknowledged,
        body(cursor=cursor),
    )

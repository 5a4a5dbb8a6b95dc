"""What operators see and do, as plain functions that build requests: hosts, the plan, lives of messages, families.

They need a key of the role `admin`. Both clients of the push service have them as methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import msgspec

from emq.topics.families import Bounds
from emq.topics.family_file import NONE
from emq.topics.option_types import FamilyArguments
from emq_clients.push import answers
from emq_clients.requests import Page, Paging, Request, body, match, once, path


def hosts() -> Request[answers.Hosts]:
    """Return the hosts heard of within the last hour, by name."""
    return Request("GET", path("hosts"), answers.Hosts)


def plan() -> Request[answers.Plan]:
    """Return which host has how many groups. Refused with `no_plan` where one host alone consumes."""
    return Request("GET", path("plan"), answers.Plan)


def trace(message: str, *, topic: str | None = None) -> Request[answers.Trace]:
    """Return the life of a message, where it is, and why it waits.

    Args:
        topic: the message's; needed if no trail is kept.
    """
    return Request("GET", path("trace", message, topic=topic), answers.Trace)


def trace_delivery(tenant: str, delivery: str) -> Request[answers.Trace]:
    """Return the life of a delivery, where it is, and why it waits."""
    return Request("GET", path("tenants", tenant, "deliveries", delivery, "trace"), answers.Trace)


# ------------------------------------------------------------------------------------------------------------ families


def create_family(
    family: str, *, bounds: Bounds | None = None, **settings: Unpack[FamilyArguments]
) -> Request[answers.Family]:
    """Create a family, such as `orders.*`; arguments as for `emq.App.family`."""
    idle = {"idle_s": NONE} if "idle_s" in settings and settings["idle_s"] is None else {}
    given = {**settings, **idle, **msgspec.to_builtins(bounds or Bounds())}
    return Request("POST", path("families"), answers.Family, body(name=family, **given))


def change_family(family: str, changes: Mapping[str, Any], *, version: int | None = None) -> Request[answers.Family]:
    """Change a family, and its topics in what is not their own.

    Args:
        changes: settings and bounds by name; None gives a setting its default again, and "none" as `idle_s` is never.
            `attributes` changes those that it names; None as a value removes one.
        version: change only this version; None for any.
    """
    where, content = path("families", family), msgspec.json.encode(changes)
    return Request("PATCH", where, answers.Family, content, match(version))


def family(family: str) -> Request[answers.Family]:
    """Return a family."""
    return Request("GET", path("families", family), answers.Family)


def families(**paging: Unpack[Paging]) -> Request[Page[answers.Family]]:
    """Return a page of families by name."""
    return Request("GET", path("families", **paging), Page[answers.Family])


def delete_family(family: str, *, force: bool = False, version: int | None = None) -> Request[None]:
    """Delete a family; with `force` also its topics with their messages."""
    where = path("families", family, force="true" if force else None)
    return Request("DELETE", where, type(None), headers={**once(), **match(version)})


def pause_family(family: str) -> Request[answers.Family]:
    """Stop consuming all topics of a family; publishing goes on."""
    return Request("POST", path("families", f"{family}:pause"), answers.Family)


def resume_family(family: str) -> Request[answers.Family]:
    """Let all topics of a family publish and consume again. One that was paused by itself stays paused."""
    return Request("POST", path("families", f"{family}:resume"), answers.Family)


def drain_family(family: str) -> Request[answers.Family]:
    """Refuse new messages for all topics of a family, and make no new topics; hosts consume the rest."""
    return Request("POST", path("families", f"{family}:drain"), answers.Family)

"""Changes from the pages, in two steps.

The first step is a page that shows the present value, and asks for the new one. The second shows the effect; its form
carries the proof that the page was ours, and makes the change.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from starlette.responses import Response

from emq_push.service.refusals import Invalid
from emq_web.pages.rendering import number, segment
from emq_web.pages.routing import Screen

DONE = {
    "rate": "The rate is changed; all hosts follow within seconds.",
    "paused": "Paused. What is in flight ends; nothing more starts.",
    "resumed": "Resumed.",
    "endpoint": "The endpoint is changed; all hosts follow within seconds.",
    "endpoint_gone": "The endpoint is deleted.",
    "enabled": "Enabled: what waits is sent again.",
    "example": "The example is on its way; load this page again for its attempts.",
    "resent": "The delivery waits again, as a first attempt.",
    "replay": "The replay begins within seconds.",
    "asked": "Done: the replay follows within seconds.",
    "family_rate": "The rate is changed, also of all topics without one of their own; hosts follow within seconds.",
    "family_paused": "Paused, with all topics. What is in flight ends; nothing more starts.",
    "family_resumed": "Resumed. A topic that was paused by itself stays paused.",
    "key_deleted": "Deleted. Other processes of the API take the key for a second more.",
    "limit": "The limit is changed; the host of the pool follows within about a second.",
    "resource_paused": "Paused. What runs there ends; nothing more starts there.",
    "resource_resumed": "Resumed: it starts tasks again within about a second.",
}
"""The texts of pages after changes."""


PAUSING = ("What is in flight ends; nothing more starts until somebody resumes it.", "New messages wait.")
"""The effect of a pause of topics."""


class Field(NamedTuple):
    """A field of a form; with `choices` (value, text) a list to choose from."""

    name: str
    label: str
    value: str = ""
    type: str = "text"
    hint: str = ""
    required: bool = False
    choices: Sequence[tuple[str, str]] = ()


class Change(NamedTuple):
    """A step of a change.

    Attributes:
        action: the path below that of the tenant, family or pool.
        lines: the present state, or the effect.
        confirms: True for the second step, whose button does it.
    """

    title: str
    action: str
    lines: Sequence[str]
    button: str
    hidden: Mapping[str, str] = {}
    fields: Sequence[Field] = ()
    confirms: bool = False
    grave: bool = False
    wrong: str = ""


def back(screen: Screen, tenant: str, done: str) -> Response:
    """Send the browser to the tenant's page, which shows the text of a key of `DONE`."""
    return screen.go(f"/tenants/{segment(tenant)}?done={done}")


def number_in(text: str) -> float:
    """Return the number that somebody typed; one that no range holds if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def time_in(text: str, default: int) -> int:
    """Return the time that somebody chose, in microseconds since the epoch. Raises `Invalid` if it is none."""
    if not text:
        return default
    try:
        found = datetime.datetime.fromisoformat(text)
        return round(found.replace(tzinfo=found.tzinfo or datetime.UTC).timestamp() * 1e6)
    except (ValueError, OverflowError):
        raise Invalid("invalid_request", f"{text[:40]!r} is not a time such as 2026-01-31T08:30.") from None


def rate_in(text: str) -> float:
    """Return the rate that somebody typed. Raises `Invalid` if it is none."""
    found = number_in(text)
    if not 0 < found <= 1e6:
        raise Invalid("invalid_request", f"A rate is a number above 0 and at most 1,000,000, not {text[:40]!r}.")
    return found


def rate_change(title: str, before: float, asked: str, each: str = "", hidden: Mapping[str, str] = {}) -> Change:
    """Return the step of a change of a rate: the first, unless `asked` is a rate.

    Args:
        before: the present rate, a second.
        asked: what somebody typed; empty at first.
        each: whose rate it is, in the lines, such as " for each topic"; empty for that of one thing.
    """
    after, wrong = None, ""
    try:
        after = rate_in(asked) if asked else None
    except Invalid as exc:
        wrong = str(exc)
    if after is None:
        field = Field("qps", "New rate, a second", asked or f"{before:.15g}", "number", required=True)
        return Change(
            title, "rate", [f"Now: at most {number(before)} a second{each}."], "Go on", hidden, [field], wrong=wrong
        )
    lines = [f"From {number(before)} to {number(after)} a second{each}, on all hosts, within seconds."]
    return Change(title, "rate", lines, "Change the rate", {**hidden, "qps": f"{after:.15g}"}, confirms=True)


def pause_change(
    name: str, is_paused: bool, pausing: Sequence[str], resuming: Sequence[str], hidden: Mapping[str, str] = {}
) -> Change:
    """Return the one step of a pause, or of its end.

    Args:
        pausing, resuming: what either would do.
    """
    button, lines = ("Resume", resuming) if is_paused else ("Pause", pausing)
    hidden = {**hidden, "to": button.lower()}
    return Change(f"{button} {name}", "pause", lines, button, hidden, confirms=True, grave=not is_paused)


def is_pause(form: Mapping[str, str]) -> bool:
    """Return whether a form asks for a pause, or for its end. Raises `Invalid` if it says neither."""
    to = form.get("to")
    if to not in ("pause", "resume"):
        raise Invalid("invalid_request", "Say whether to pause or to resume.")
    return to == "pause"

"""What if: the waits of each type before and after changes that are not made.

The changes stand in the address, in the words of `emq_scheduling.forecast.what_if`, so a forecast can be sent as a
link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from starlette.responses import Response

from emq.runtime import errors
from emq_push.service.refusals import Invalid
from emq_scheduling.forecast import what_if
from emq_scheduling.forecast.prediction import Forecast, TypeForecast
from emq_scheduling.model import Pool
from emq_scheduling.pools import rules
from emq_web.pages import pools_screen
from emq_web.pages.pools_screen import Choice
from emq_web.pages.rendering import PREFIX, segment
from emq_web.pages.routing import AdminView, new_router

router = new_router()

MOST_CHANGES = 20
CHOICES = 500
"""Most resources, and most limits, that a form offers."""

ALIKE = 0.05
ALIKE_S = 0.05
"""Waits that differ by less than this part, or by fewer seconds, count as equal."""

SHOWN = 100
"""Most resources whose utilisation is compared."""


class TypeCompared(NamedTuple):
    """A type before and after; `better` and `worse` say that its p99 is clearly another one."""

    name: str
    before: TypeForecast
    after: TypeForecast

    @property
    def better(self) -> bool:
        return _is_better(self.after, self.before)

    @property
    def worse(self) -> bool:
        return _is_better(self.before, self.after)


def _is_better(one: TypeForecast, other: TypeForecast) -> bool:
    """Return whether clearly more tasks start, or as many with a clearly lower p99."""
    lost, others = one.left + one.expired, other.left + other.expired
    if abs(lost - others) > max(1.0, ALIKE * others):
        return lost < others
    return one.p99_s < other.p99_s * (1 - ALIKE) and other.p99_s - one.p99_s > ALIKE_S


class Written(NamedTuple):
    """A change, and the address of the page without it."""

    text: str
    without: str


class Compared(NamedTuple):
    """Two forecasts; utilisation is None for a resource that one of them does not have."""

    before: Forecast
    after: Forecast
    types: list[TypeCompared]
    utilisation: list[tuple[str, float | None, float | None]]
    warnings: list[str]


@router.get("/pools/{pool}/what-if")
async def ask(pool: str, screen: AdminView) -> Response:
    found = (await screen.desk.catalog.get(pool)).pool
    given = dict(screen.request.query_params)
    texts, wrong = screen.request.query_params.getlist("change")[:MOST_CHANGES], ""
    snapshot = await screen.desk.snapshots.load(pool)
    try:
        made = [*texts, *_written(given)]
        changed = what_if.changed(found, made)
        texts = made
    except (Invalid, errors.InvalidPool) as exc:
        wrong, changed = str(exc), _or_as_it_is(found, texts)
    compared = None
    if texts:
        state = screen.desk.state_of(snapshot)
        outcome = await screen.desk.what_if(screen.visitor.key.account, found, state, changed)
        warnings = rules.warnings(changed, state.waiting)
        compared = _compared(outcome.before, outcome.after, warnings)
    return screen.answer(
        "pool_what_if.html",
        pool=found,
        changes=_listed(pool, texts),
        texts=texts,
        wrong=wrong,
        compared=compared,
        resources=[name for name, _ in changed.tree()][:CHOICES],
        copied=[name for name, each in changed.resources.items() if each.takes][:CHOICES],
        limits=[(_value(choice), choice.in_words) for choice in pools_screen.choices(changed, CHOICES)],
        at=0.0 if snapshot is None else snapshot.at,
        live=snapshot is not None and not snapshot.is_stale(screen.desk.now()),
        given=given if wrong else {},
    )


def _written(given: dict[str, str]) -> list[str]:
    """Return the change that the form asks for, in words; none if it asks for nothing. Raises `Invalid`."""
    verb, resource = given.get("verb", ""), given.get("resource", "")
    if verb == "remove":
        return [f"remove {resource}"]
    if verb == "add":
        name = given.get("name", "").strip() or f"{resource} (copy)"
        return [f"add {name}=copy-of:{resource}"]
    if verb == "limit":
        of = dict(parse_qsl(given.get("limit", "")))
        name, _, per = of.get("limit", "").rpartition("/")
        return [f"limit {of.get('resource', '')} {name}={given.get('amount', '').strip() or 'none'}/{per}"]
    if verb:
        raise Invalid("invalid_request", f"{verb[:40]!r} is not a change; choose one of the forms.")
    return []


def _or_as_it_is(pool: Pool, texts: Sequence[str]) -> Pool:
    try:
        return what_if.changed(pool, texts)
    except errors.InvalidPool:
        return pool


def _listed(pool: str, texts: Sequence[str]) -> list[Written]:
    here = f"{PREFIX}/pools/{segment(pool)}/what-if"
    found = []
    for number, text in enumerate(texts):
        left = [("change", each) for at, each in enumerate(texts) if at != number]
        found.append(Written(text, f"{here}?{urlencode(left)}" if left else here))
    return found


def _value(choice: Choice) -> str:
    return urlencode({"resource": choice.resource, "limit": choice.key})


def _compared(before: Forecast, after: Forecast, warnings: list[str]) -> Compared:
    types = [TypeCompared(name, each, after.types.get(name, TypeForecast())) for name, each in before.types.items()]
    names = list({**before.utilisation, **after.utilisation})[:SHOWN]
    used = [(name, before.utilisation.get(name), after.utilisation.get(name)) for name in names]
    return Compared(before, after, types, used, warnings)

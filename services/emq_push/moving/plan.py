"""What an export becomes here: tenants with their endpoints, and what has no equal."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from emq.runtime import durations
from emq_push.records.endpoints import EndpointSettings
from emq_push.service import tenancy
from emq_push.service.endpoint_edits import NEW, Start
from emq_push.service.refusals import Invalid
from emq_push.service.topic_fields import EndpointFields, TopicFields

_NO_ID = re.compile(r"[^A-Za-z0-9_-]+")
_MOST_OF_ID = 64
_MOST_OF_NAME = 200
_LISTS = ("data", "content", "models", "event_types")
_MOST_OF_DESCRIPTION = 2_000
MAX_REASON = 500
"""Most characters of why an endpoint is disabled, as for `:disable`."""
_BEFORE_UNIT = re.compile(r"(?<=\d)\s+(?=[a-z])")


class Unfit(Exception):
    """Something of the export cannot be made here; the text says what and why."""


class NewEndpoint(NamedTuple):
    """An endpoint to make.

    Attributes:
        source: how the export calls it.
    """

    source: str
    settings: EndpointSettings
    fields: TopicFields
    start: Start = NEW


class NewTenant(NamedTuple):
    """A tenant to make, or to complete."""

    id: str
    settings: Mapping[str, Any]
    endpoints: Sequence[NewEndpoint]


class NewType(NamedTuple):
    """An event type to make."""

    name: str
    settings: Mapping[str, Any]


class Note(NamedTuple):
    """Something of the export that is left out, or otherwise here.

    Attributes:
        source: whose it is, as the export calls it; empty for all.
    """

    source: str
    text: str


class Plan:
    """Collects what an export becomes.

    Args:
        qps: the rate of tenants whose export has none.

    Attributes:
        types: event types to make.
        failed: by the export's names, what cannot be made, and why.
    """

    def __init__(self, qps: float, signing: str) -> None:
        self._qps, self._signing = qps, signing
        self._tenants: dict[str, tuple[str, dict[str, Any], list[NewEndpoint]]] = {}
        self._seen: set[object] = set()
        self.types: list[NewType] = []
        self.notes: list[Note] = []
        self.failed: dict[str, str] = {}

    @property
    def tenants(self) -> Sequence[NewTenant]:
        return [NewTenant(id_, settings, endpoints) for id_, (_, settings, endpoints) in self._tenants.items()]

    def note(self, source: str, text: str) -> None:
        self.notes.append(Note(source, text))

    def tenant(self, source: str, name: str = "", qps: float | None = None) -> str:
        """Add a tenant; return its id, which is that of the source as far as an id here may have its letters."""
        id_ = _NO_ID.sub("-", source)[:_MOST_OF_ID]
        if (there := self._tenants.get(id_)) is not None:
            if there[0] != source:
                raise Unfit(f"its id would be {id_}, as that of {there[0]}; rename one of the two")
            return id_
        try:
            tenancy.check_id(id_)
        except Invalid as exc:
            raise Unfit(str(exc)) from None
        if id_ != source:
            self.note(source, f"has the id {id_} here; use that to publish")
        settings: dict[str, Any] = {"qps": qps or self._qps}
        if name:
            settings["name"] = name[:_MOST_OF_NAME]
        self._tenants[id_] = source, settings, []
        return id_

    def fail(self, source: str, why: str) -> None:
        """Note what cannot be made; several things of one name stay apart."""
        add(self.failed, source, why)

    def event_type(self, name: str, settings: Mapping[str, Any]) -> None:
        """Add an event type, with the settings that have a value. One that stands for all types is left out."""
        if name != "*":
            given = {each: value for each, value in settings.items() if value}
            given["description"] = text(given.get("description"))[:_MOST_OF_DESCRIPTION]
            self.types.append(NewType(name, given))

    def endpoint(
        self,
        tenant: str,
        source: str,
        given: Mapping[str, Any],
        *,
        former: str = "",
        former_until: datetime.datetime | None = None,
        disabled: str = "",
    ) -> None:
        """Add an endpoint to a tenant that was added before.

        Args:
            given: fields of an endpoint, as the API takes them; None for those to leave out.
            former: an older secret that receivers may still check; empty for none.
            former_until: when the older one ends.
            disabled: why it gets nothing yet; empty if it does.
        """
        values = {name: value for name, value in given.items() if value is not None}
        if self._signing:
            values["signing"] = self._signing
        try:
            whole = msgspec.to_builtins(msgspec.convert(values, EndpointFields))
        except msgspec.ValidationError as exc:
            raise Unfit(str(exc)) from None
        of_topic = {name: whole.pop(name) for name in TopicFields.__struct_fields__}
        settings, fields = msgspec.convert(whole, EndpointSettings), msgspec.convert(of_topic, TopicFields)
        start = Start(disabled=disabled[:MAX_REASON])
        if former and former != fields.secret and former_until and former_until > datetime.datetime.now(datetime.UTC):
            start = start._replace(former=former, former_until_us=round(former_until.timestamp() * 1e6))
        key = (tenant, source, settings, fields.secret)
        if key in self._seen:
            self.note(source, "is there twice; made once")
            return
        self._seen.add(key)
        self._tenants[tenant][2].append(NewEndpoint(source, settings, fields, start))


def add(named: dict[str, str], name: str, text: str) -> None:
    """Add a text under a name, or under the name with a number if there is one of that name."""
    key, count = name, len(named)
    while key in named:
        count += 1
        key = f"{name} ({count})"
    named[key] = text


def text(value: object) -> str:
    """Return a text of the export; empty for anything else."""
    return value.strip() if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object of the export; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[Mapping[str, Any]]:
    """Return a list of objects: the answer of a listing itself, or the list under a name of `_LISTS` within."""
    while isinstance(value, dict):
        value = next((value[name] for name in _LISTS if name in value), None)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def number(value: object) -> float | None:
    """Return a number of the export; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def seconds(value: object) -> float | None:
    """Return a duration in seconds: a number, or a text such as `30s` or `1m`."""
    if (plain := number(value)) is not None:
        return plain
    span = _BEFORE_UNIT.sub("", text(value))
    found = durations.span_s(span)
    return found if found is not None else durations.span_s(f"{span}s")  # a number alone means seconds


def time(value: object) -> datetime.datetime | None:
    """Return a time of the export; None for none, and for one that cannot be read."""
    try:
        found = datetime.datetime.fromisoformat(text(value))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def types(value: object) -> list[str]:
    """Return event types; those of all if there are none."""
    found = [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
    return ["*"] if not found or "*" in found else found


def named(names: object) -> str:
    return ", ".join(sorted(map(str, names))) if isinstance(names, (list, dict)) else str(names)

"""The operations of the API on families. Each change is written to the audit log in its own transaction."""

from __future__ import annotations

import contextlib
import hashlib
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import sqlalchemy as sa

from emq.observe.families import Families
from emq.runtime import documents, errors, extending
from emq.runtime.inputs import shown as in_text
from emq.topics import asking, families, secret_attributes
from emq.topics.catalog import Catalog
from emq.topics.catalog_change import CatalogChange
from emq.topics.families import BOUNDS, Bounds, Family
from emq.topics.family_file import NONE
from emq.topics.family_rows import FamilyRows, Stored
from emq.topics.model import State, Topic, TopicOptions, called
from emq_push.merging import merged
from emq_push.service.parts import Parts
from emq_push.service.refusals import check_version
from emq_web.problems import Problem

T = TypeVar("T")

_ACTIONS = {State.ACTIVE: "family.resumed", State.PAUSED: "family.paused", State.DRAINING: "family.drained"}


def _fields(kind: type[msgspec.Struct], names: tuple[str, ...]) -> Iterator[tuple[str, Any, Any]]:
    """Yield fields of a struct of the engine as a body has them: null stands for the default."""
    for field in msgspec.structs.fields(kind):
        if field.name not in names:
            continue
        inner, meaning = typing.get_args(field.type)
        default: dict[str, Any] = {"default": field.default}
        if field.default is msgspec.NODEFAULT:
            default = {"default_factory": field.default_factory}
        if field.name == "idle_s":
            inner, default = inner | Literal["none"], {"default": families.IDLE_S}
        if not field.required:
            inner |= None
        yield field.name, Annotated[inner, meaning], msgspec.field(**default)


SETTINGS = msgspec.defstruct(
    "FamilySettings",
    [
        ("name", Annotated[str, msgspec.Meta(description="A prefix and a star, such as `orders.*`.")]),
        *_fields(Topic, asking.SETTINGS),
        *_fields(TopicOptions, asking.SETTINGS),
        *_fields(Bounds, BOUNDS),
    ],
    kw_only=True,
    forbid_unknown_fields=True,
)
"""The body that creates a family: the settings of its topics and its bounds, as the engine describes them."""

_DEFAULTS = msgspec.structs.asdict(SETTINGS(name="", qps=0.0))


def read(given: Any, of: str = "") -> dict[str, Any]:
    """Return the settings and bounds that a body gives, by name.

    Args:
        of: the family that the body changes; empty if it creates one.

    Raises:
        InvalidTopic: a value does not fit; the text names it.
    """
    whole = {"name": of, "qps": 1.0, **given} if of and isinstance(given, dict) else given
    values = documents.converted(whole, SETTINGS, called(of) if of else "the family", errors.InvalidTopic)
    found = {name: getattr(values, name) for name in given}
    found = {name: _DEFAULTS[name] if value is None else value for name, value in found.items()}
    return {**found, "idle_s": None} if found.get("idle_s") == NONE else found


def settings_of(family: Family) -> dict[str, Any]:
    """Return the settings and bounds of a family, as a body has them."""
    return {**topic_settings_of(family.topic), **msgspec.structs.asdict(family.bounds)}


def topic_settings_of(topic: Topic) -> dict[str, Any]:
    """Return the settings of a topic, as a body has them."""
    found = {name: asking.value(topic, name) for name in asking.SETTINGS}
    return {**found, "idle_s": NONE if found["idle_s"] is None else found["idle_s"]}


def differing(family: Family) -> dict[str, Any]:
    """Return the settings and bounds of a family that are not the defaults, without secrets."""
    return {name: value for name, value in settings_of(without_secrets(family)).items() if value != _DEFAULTS[name]}


def without_secrets(family: Family) -> Family:
    """Return a family as it may be shown."""
    return msgspec.structs.replace(family, topic=secret_attributes.without_secrets(family.topic))


def version_of(family: Family) -> int:
    """Return a checksum of settings, bounds and state, which has few enough bits for any reader of JSON."""
    text = msgspec.json.encode((family.topic.state, settings_of(family)), order="deterministic")
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest())


class FamilyDesk:
    """What a request does with one family.

    Args:
        actor: who changes it, as the audit log names them.
        version: the one that a change is for; 0 if there must be no such family, None for any.
    """

    def __init__(self, parts: Parts, name: str, actor: str, version: int | None = None) -> None:
        self._name = name
        self._settings = parts.app.settings
        self._catalog = _AuditedCatalog(parts, name, actor, version)
        self._families = Families(self._catalog, parts.app.admin)

    async def get(self) -> Stored:
        with self._told():
            return await self._families.get(self._name)

    async def create(self, given: Mapping[str, Any]) -> Stored:
        """Create the family. If there is one with the same settings, return that one.

        Raises:
            Problem: there is a family of this name with other settings, or no topic of the name given as its budget.
            InvalidTopic: a setting is out of range.
        """
        settings, bounds = _apart(given)
        topic = self._kept(families.asked(self._name, settings), None)
        with self._told():
            try:
                await self._families.create(Family(topic, Bounds(**bounds)))
            except errors.UnknownTopic as exc:
                raise Problem(422, "unknown_budget", str(exc), pointer="/budget") from None
        return self._catalog.changed

    async def change(self, patch: Any) -> Stored:
        """Change settings and bounds of the family, and of its topics what is not their own.

        Args:
            patch: a JSON Merge Patch.

        Raises:
            Problem: there is no such family.
            OtherVersion: it has another version.
            InvalidTopic: a setting is out of range, or never changes.
        """
        with self._told():
            if isinstance(patch, dict) and isinstance(patch.get("attributes"), dict):
                there = (await self._families.get(self._name)).family.topic
                before = secret_attributes.without_secrets(there).options.attributes
                patch = {**patch, "attributes": merged(before, patch["attributes"])}
            settings, bounds = _apart(read(patch, self._name))
            if "attributes" in settings:
                there = (await self._families.get(self._name)).family.topic
                options = msgspec.structs.replace(there.options, attributes=settings["attributes"])
                wanted = self._kept(msgspec.structs.replace(there, options=options), there)
                settings["attributes"] = wanted.options.attributes
            await self._families.set(self._name, settings, bounds)
        return self._catalog.changed

    async def set_state(self, state: State) -> Stored:
        """Pause, resume or drain the family. Raises as `change`."""
        with self._told():
            await self._families.set(self._name, {"state": state})
        return self._catalog.changed

    async def delete(self, *, force: bool) -> None:
        """Delete the family.

        Args:
            force: delete its topics, too, with their messages.

        Raises:
            Problem: there is no such family, it has topics and `force` is not set, or one of these is a budget.
            OtherVersion: it has another version.
        """
        with self._told():
            await self._families.delete(self._name, force=force)

    def _kept(self, topic: Topic, before: Topic | None) -> Topic:
        """Return the topic as the catalog is to keep it: with its secrets encrypted, and masked ones as before.

        Raises:
            InvalidTopic: an extension refuses an attribute, or there is no secret behind a mask.
        """
        there = {} if before is None else before.options.attributes
        topic = secret_attributes.unmasked(topic, before)
        for extension in extending.extensions():
            is_new = topic.options.attributes.get(extension.address) != there.get(extension.address)
            extension.check(topic, self._settings, is_new=is_new)
            topic = extension.stored(topic, self._settings)
        return topic

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Tell errors of the engine in words of the API."""
        name = in_text(self._name)
        try:
            yield
        except errors.UnknownTopic:
            raise Problem(404, "unknown_family", f"there is no family {name}; create it: POST /v1/families") from None
        except errors.TopicExists:
            text = f"family {name} exists already with other settings; PATCH it, or choose another prefix"
            raise Problem(409, "family_exists", text) from None
        except (errors.StillConsumed, errors.StillNamed) as exc:
            raise Problem(409, "family_in_use", str(exc).replace("with force", "with force=true")) from None


class _AuditedCatalog(Catalog):
    """The catalog for one change of a family: its transaction checks the version first, and has an audit entry.

    Args:
        version: of the family; for the first transaction alone, where a change needs several.
    """

    def __init__(self, parts: Parts, name: str, actor: str, version: int | None) -> None:
        app = parts.app
        most, lua = app.store.log.max_queue_qps, app.settings.lua_folds
        super().__init__(app.database, parts.environment, most, lua_folds=lua, place=app.place)
        self.written = app.catalog.written
        self._parts = parts
        self._name = name
        self._actor = actor
        self._version = version
        self._after: Stored | None = None

    @property
    def changed(self) -> Stored:
        """The family as the change has left it."""
        assert self._after is not None
        return self._after

    async def write_rows(self, make: Callable[[CatalogChange], T]) -> T:
        def run(change: CatalogChange) -> T:
            before = self._found(change.rows.families)
            check_version(called(self._name), self._version, 0 if before is None else version_of(before.family))
            made = make(change)
            self._after = self._found(change.rows.families)
            self._audit(change.rows.connection, before and before.family, self._after and self._after.family)
            return made

        made = await super().write_rows(run)
        self._version = None
        return made

    def _found(self, rows: FamilyRows) -> Stored | None:
        try:
            return rows.get(self._name)
        except errors.UnknownTopic:
            return None

    def _audit(self, connection: sa.Connection, before: Family | None, after: Family | None) -> None:
        if before == after:
            return
        if after is None:
            self._parts.audit(connection, self._actor, "family.deleted", self._name)
            return
        action = "family.created"
        if before is not None:
            action = "family.changed" if before.topic.state == after.topic.state else _ACTIONS[after.topic.state]
        old = _DEFAULTS if before is None else settings_of(before)
        new, shown = settings_of(after), settings_of(without_secrets(after))
        changes = {name: shown[name] for name in new if new[name] != old[name]}
        self._parts.audit(connection, self._actor, action, self._name, changes=changes)


def _apart(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of topics and the bounds, without the name of a new family."""
    settings = {name: value for name, value in given.items() if name not in BOUNDS}
    return settings, {name: value for name, value in given.items() if name in BOUNDS}

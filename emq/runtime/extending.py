"""Extensions: packages beside the engine add meanings of topics' attributes, work on hosts, and commands.

A package names an `Extension` as an entry point of the group `emq.extensions`. The engine knows none of them by name.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import sqlalchemy as sa
    import typer

# What these names stand for lies in rooms above this one, which import it. Extensions write the types themselves.
App: TypeAlias = Any  # emq.App
Settings: TypeAlias = Any  # emq.Settings
Topic: TypeAlias = Any  # emq.Topic

ENTRY_POINTS = "emq.extensions"


class Standstill(NamedTuple):
    """Why a topic starts nothing.

    Attributes:
        reason: such as `its endpoint is disabled: 410 Gone`.
        remedy: the command that lets the topic go on.
    """

    reason: str
    remedy: str


class Extension:
    """Adds nothing; a package overrides what it adds.

    The command line loads all extensions first, so their modules import large libraries only in the methods that need
    them.

    Attributes:
        prefix: the beginning of the names of the attributes that it gives a meaning, such as `push.`; empty for none.
        address: the attribute by which it takes the messages of a topic that has no handler, such as `push.url`.
        recipient: its word for the recipient of these messages, such as `endpoint`.
        help: its most important attributes, for the list of options.
        notes: attributes in which it notes the observations of hosts; such a change is not a change of the recipient.
    """

    prefix = ""
    address = ""
    recipient = ""
    help = ""
    notes: frozenset[str] = frozenset()

    def is_secret(self, attribute: str) -> bool:
        """Return True if the attribute of this name holds a secret, which EMQ shows to nobody."""
        return False

    def permit(self, topic: Topic, before: Topic | None) -> None:
        """Refuse a change of a topic within its transaction.

        Args:
            before: the topic as it is; None if it is new.

        Raises:
            InvalidTopic: the change is refused.
        """

    def standstill(self, topic: Topic) -> Standstill | None:
        """Return why it takes no messages of a topic now; None if it takes them, or never would."""

    def check(self, topic: Topic, settings: Settings, *, is_new: bool) -> None:
        """Refuse attributes of a topic that cannot work on a host with these settings.

        Args:
            is_new: False if the address has not changed.

        Raises:
            InvalidTopic: an attribute is wrong or not allowed.
        """

    def stored(self, topic: Topic, settings: Settings) -> Topic:
        """Return the topic as the catalog should keep it, with its secrets encrypted, for instance."""
        return topic

    async def agreed(self, topic: Topic, origin: str, settings: Settings) -> Topic:
        """Ask the topic's recipient for permission in the name of `origin`; return the topic with the allowed rate.

        Raises:
            InvalidTopic: the topic has no recipient, or the recipient does not agree.
        """
        return topic

    async def noted(self, app: App, topic: Topic, changes: Mapping[str, Any]) -> Callable[[sa.Connection], None] | None:
        """Return a function that notes a change of a topic through `app`, in the transaction of the change.

        Args:
            topic: as it is before the change.
            changes: the new values, as for `Catalog.update`.
        """

    async def set_up(self, app: App) -> None:
        """Create its tables in the database, or bring them to this version: `app` is open."""

    @contextlib.asynccontextmanager
    async def consuming(self, app: App) -> AsyncIterator[None]:
        """Take part in a host for the length of a block: `app` is not open yet."""
        yield

    @contextlib.asynccontextmanager
    async def serving(self, app: App) -> AsyncIterator[None]:
        """Serve requests beside a host for the length of a block: `app` is open."""
        yield

    def add_commands(self, root: typer.Typer) -> None:
        """Add commands to those of `emq`."""


@functools.cache
def extensions() -> tuple[Extension, ...]:
    """Return the extensions of the installed packages, in the order of their names."""
    entries = sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name)
    return tuple(entry.load()() for entry in entries if find_spec(package_of(entry)) is not None)


def package_of(entry: EntryPoint) -> str:
    """Return the package of an extension."""
    return entry.module.partition(".")[0]


@functools.cache
def takers() -> tuple[Extension, ...]:
    """Return the extensions that take the messages of topics to an address."""
    return tuple(extension for extension in extensions() if extension.address)


def addressed(attributes: Mapping[str, str]) -> Extension | None:
    """Return the extension that takes the messages of a topic with these attributes; None if none does."""
    if not attributes:
        return None
    return next((e for e in takers() if e.address in attributes), None)


def addresses() -> str:
    """Return the attributes by which extensions take messages, as ` or push.url`; empty if there are none."""
    return "".join(f" or {e.address}" for e in takers())


def standstill(topic: Topic) -> Standstill | None:
    """Return why no extension takes the messages of a topic now; None if only the engine is concerned."""
    if not topic.options.attributes:
        return None
    return next((found for e in takers() if (found := e.standstill(topic)) is not None), None)


@functools.cache
def notes() -> frozenset[str]:
    """Return the attributes in which extensions note the observations of hosts."""
    return frozenset().union(*(e.notes for e in extensions()))


@contextlib.asynccontextmanager
async def consuming(app: App) -> AsyncIterator[None]:
    """Let all extensions take part in a host for the length of a block: `app` is not open yet."""
    async with contextlib.AsyncExitStack() as stack:
        for extension in extensions():
            await stack.enter_async_context(extension.consuming(app))
        yield


@contextlib.asynccontextmanager
async def serving(app: App) -> AsyncIterator[None]:
    """Let all extensions serve requests beside a host for the length of a block: `app` is open."""
    async with contextlib.AsyncExitStack() as stack:
        for extension in extensions():
            await stack.enter_async_context(extension.serving(app))
        yield

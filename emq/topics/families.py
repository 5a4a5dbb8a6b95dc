"""Families: a prefix with settings for all topics below it, so that a topic needs no set-up.

The first publish to a name below a family makes the topic, with the family's settings. The topic's row is like that of
any other topic, so hosts and producers need to know nothing of families. `Topic.own` names the settings that somebody
has set for this topic; a change of the family changes all others.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from emq.runtime import errors, inputs
from emq.topics import asking, changing, rules
from emq.topics.model import State, Topic, settings_of
from emq.topics.options import means

SETTINGS = (*asking.SETTINGS, "state")
"""The settings that a family gives to its topics."""

FIXED = ("priorities", "kind", "slots", "merge", "budget", "buckets")
"""Settings of a family that never change, as those of a topic; see `changing.REFUSED`."""

MAX_TOPICS = 10_000_000

IDLE_S = 300.0
"""The `idle_s` of a family that does not say it."""


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The bounds on what strangers may cause by publishing."""

    max_topics: Annotated[
        int,
        means("Most topics of the family awake at a time; a new name beyond is refused (FamilyFull).", "topics"),
    ] = 100_000
    name_length: Annotated[int, means("Most bytes of a name behind the family's prefix.", "bytes")] = 64
    alphabet: Annotated[
        str,
        means("Characters that a name may have behind the prefix: single ones, and ranges such as a-z."),
    ] = "a-zA-Z0-9._@-"


BOUNDS = Bounds.__struct_fields__


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A prefix with settings for the topics below it.

    Attributes:
        topic: the settings of its topics; its name is the family's: a prefix and a star, such as `orders.*`.
        bounds: see `Bounds`.
    """

    topic: Topic
    bounds: Bounds = Bounds()

    @property
    def name(self) -> str:
        return self.topic.name

    @property
    def prefix(self) -> str:
        return self.topic.name[:-1]

    def check(self, name: str) -> None:
        """Raise `InvalidTopic` unless the family makes topics of this name."""
        rules.validate_name(name)
        rest, bounds = name[len(self.prefix) :], self.bounds
        if (size := len(rest.encode())) > bounds.name_length:
            raise errors.InvalidTopic(
                f"topic name {name!r} has {size} bytes behind {self.prefix!r}, and family {self.name!r} takes at most "
                f"{bounds.name_length} there; shorten the name, or raise it: emq family set '{self.name}' "
                "name_length=..."
            )
        rules.validate_plain(name)  # whatever the alphabet
        if wrong := _outside(bounds.alphabet).search(rest):
            raise errors.InvalidTopic(
                f"topic name {name!r} contains {wrong.group()!r}, and family {self.name!r} takes only the characters "
                f"{bounds.alphabet} behind {self.prefix!r}; change the name, or add the character: emq family set "
                f"'{self.name}' alphabet=..."
            )

    def full(self, name: str) -> errors.FamilyFull:
        """Return the error for a first publish to a name while there are `max_topics` topics."""
        return errors.FamilyFull(
            f"topic {name!r} cannot be made: family {self.name!r} has {self.bounds.max_topics} topics, as many as it "
            f"may have at a time; delete some, or raise the bound: emq family set '{self.name}' max_topics=..."
        )

    def made(self, name: str) -> Topic:
        """Return the topic of this name, with all settings of the family."""
        return msgspec.structs.replace(self.topic, name=name, family=self.name, own=())

    def adopted(self, topic: Topic) -> Topic:
        """Return a new topic with the settings that somebody gave it, and all others of the family.

        These are `topic.own`, or without it all settings that differ from the family's. Raises `InvalidTopic` if there
        is no setting of a name in `topic.own`.
        """
        own = _known(topic, topic.own) or differing(topic, self.topic)
        if topic.options.buckets:  # a topic of a family has the buckets of the family, or none
            own = [name for name in own if name != "buckets"]
        given = {name: asking.value(topic, name) for name in own}
        return msgspec.structs.replace(changing.merged(self.made(topic.name), given), own=ordered(own))


def asked(name: str, arguments: Mapping[str, Any]) -> Topic:
    """Return the settings that a program gives a family; as `asking.topic_of`, with the family's own defaults."""
    return asking.topic_of(name, {"idle_s": IDLE_S, **arguments})


def of_prefix(name: str) -> str:
    """Return a family's name, if it is one.

    Raises:
        InvalidTopic: it is not a prefix and one star.
    """
    rules.validate_name(name, "family")
    prefix = name[:-1]
    if not name.endswith("*") or not prefix or inputs.is_pattern(prefix):
        raise errors.InvalidTopic(
            f"family {name!r}: give the beginning of its topics' names and one star at the end, such as 'orders.*'"
        )
    return name


def checked(family: Family) -> Family:
    """Return a family of a valid name with the values of its bounds of their types, unless one is out of range.

    Raises:
        InvalidTopic: the text says what would be right.
    """
    try:
        bounds = msgspec.convert(msgspec.to_builtins(family.bounds), Bounds)
    except (msgspec.ValidationError, TypeError) as exc:
        raise errors.InvalidTopic(f"family {family.name!r}: {exc}") from exc
    room = rules.MAX_NAME_BYTES - len(family.prefix.encode())
    for holds, text in (
        (
            0 <= bounds.max_topics <= MAX_TOPICS,
            f"max_topics {bounds.max_topics} must be from 0 to {MAX_TOPICS}; with 0 nobody makes topics by publishing",
        ),
        (bounds.name_length >= 1, f"name_length {bounds.name_length} must be at least 1"),
        (len(bounds.alphabet) <= 256, f"alphabet has {len(bounds.alphabet)} characters; write ranges, at most 256"),
        (room >= 1, f"the prefix leaves no room for a name of at most {rules.MAX_NAME_BYTES} bytes; shorten it"),
    ):
        if not holds:
            raise errors.InvalidTopic(f"family {family.name!r}: {text}")
    try:
        _outside(bounds.alphabet)
    except (re.error, ValueError) as exc:
        raise errors.InvalidTopic(
            f"family {family.name!r}: alphabet {bounds.alphabet!r} lists no characters ({exc}); write single ones and "
            "ranges, such as a-z0-9._-"
        ) from exc
    return msgspec.structs.replace(family, bounds=bounds)


@functools.lru_cache(256)
def _outside(alphabet: str) -> re.Pattern[str]:
    """Return the pattern of a character that an alphabet does not list.

    Raises:
        ValueError: the alphabet is empty, or a range in it runs backwards.
    """
    listed, rest = "", alphabet
    while rest:
        if len(rest) >= 3 and rest[1] == "-":
            if rest[0] > rest[2]:
                raise ValueError(f"the range {rest[:3]} runs backwards")
            listed += f"{re.escape(rest[0])}-{re.escape(rest[2])}"
            rest = rest[3:]
        else:
            listed += re.escape(rest[0])
            rest = rest[1:]
    if not listed:
        raise ValueError("it is empty")
    return re.compile(f"[^{listed}]")


def with_bounds(bounds: Bounds, given: Mapping[str, Any]) -> Bounds:
    """Return bounds with some of them replaced. Raises `InvalidTopic` if there is no bound of a name."""
    for name in given:
        if name not in BOUNDS:
            raise errors.InvalidTopic(f"a family has no bound {name!r}{inputs.alike(name, BOUNDS)}")
    return msgspec.structs.replace(bounds, **given)


def differing(topic: Topic, other: Topic) -> list[str]:
    """Return the names of the settings in which two topics differ."""
    return [name for name in SETTINGS if asking.value(topic, name) != asking.value(other, name)]


def ordered(names: Collection[str]) -> tuple[str, ...]:
    """Return names of settings in the order of `SETTINGS`, each once."""
    return tuple(name for name in SETTINGS if name in names)


def settled(topic: Topic, family: Topic) -> Topic:
    """Return a topic of a family; its state is not its own any more if it and the family are active.

    So a topic that was paused by itself stays paused while its family is paused and resumed; once it is resumed by
    itself, it follows the family again.
    """
    if "state" not in topic.own or not topic.state == family.state == State.ACTIVE:
        return topic
    return msgspec.structs.replace(topic, own=tuple(name for name in topic.own if name != "state"))


def above(name: str, families: Container[str]) -> str | None:
    """Return the name of the family with the longest prefix of a name; None if the name is below no family."""
    for end in range(len(name) - 1, 0, -1):  # behind the prefix there is at least one character
        if (family := f"{name[:end]}*") in families:
            return family
    return None


def inherited(topic: Topic, family: Family, names: Iterable[str]) -> dict[str, Any]:
    """Return the family's values of settings that a topic is to take back, of those that can change.

    Raises:
        InvalidTopic: a setting is unknown, or never changes.
    """
    names = _known(topic, names)
    for name in names:
        if name in FIXED and asking.value(topic, name) != asking.value(family.topic, name):
            raise errors.InvalidTopic(f"topic {topic.name!r}: {name} never changes, so it stays its own")
    return {name: asking.value(family.topic, name) for name in names if name not in FIXED}


def _known(topic: Topic, names: Iterable[str]) -> Sequence[str]:
    """Return names of settings. Raises `InvalidTopic` if one is unknown."""
    names = [*names]
    for name in names:
        if name not in SETTINGS:
            raise errors.InvalidTopic(f"topic {topic.name!r} has no setting {name!r}{inputs.alike(name, SETTINGS)}")
    return names


def same(one: Family, other: Family) -> bool:
    """Return whether two families have the same settings and bounds."""
    return settings_of(one.topic) == settings_of(other.topic) and one.bounds == other.bounds

"""The topics that a catalog takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from emq.runtime import errors, extending
from emq.storage import folds
from emq.topics import asking, changing, families, model, rules
from emq.topics.family_rows import Stored
from emq.topics.model import DEFAULT_PRIORITIES, Topic


class Admission:
    """Decides which topics and which changes of topics the catalog takes.

    Args:
        max_queue_qps: operations a second that one queue of the store can take; None if the store names no such limit.
        lua_folds: True if topics may get a Lua chunk of their own as fold; topics that have one keep it either way.
    """

    def __init__(self, max_queue_qps: float | None, lua_folds: bool) -> None:
        self._max_queue_qps = max_queue_qps
        self._lua_folds = lua_folds

    def checked(self, topic: Topic) -> Topic:
        """Return the topic with its groups, and all values of their types.

        Raises:
            InvalidTopic: a setting is out of range or of a wrong type; the text says what would be right.
        """
        rules.validate_text(topic.name)  # or bytes would become other text
        topic = asking.checked(topic)
        if topic.is_sorted and topic.priorities == DEFAULT_PRIORITIES:
            topic = msgspec.structs.replace(topic, priorities=())
        rules.validate(topic, self._max_queue_qps)
        try:
            folds.check_lua(topic.options.fold_lua)
        except errors.InvalidMessage as exc:
            raise errors.InvalidTopic(f"topic {topic.name!r}: {exc}") from exc
        return model.split(topic)

    def adopted(self, topic: Topic, there: Mapping[str, Stored]) -> Topic:
        """Return a new topic with the settings of the family that it lies below, except for its own.

        Raises:
            InvalidTopic: these settings do not go together.
        """
        family = families.above(topic.name, {name: stored.family for name, stored in there.items()})
        if family is None:
            return topic if not topic.own else msgspec.structs.replace(topic, own=())
        return self.checked(family.adopted(topic))

    def permit(self, topic: Topic, before: Topic | None) -> Topic:
        """Return `topic`.

        Raises:
            InvalidTopic: its Lua chunk is new and the setting forbids Lua chunks; or an extension refuses the change.
        """
        for extension in extending.extensions():
            extension.permit(topic, before)
        lua = topic.options.fold_lua
        if lua and not self._lua_folds and (before is None or before.options.fold_lua != lua):
            raise errors.InvalidTopic(
                f"topic {topic.name!r}: a fold in Lua runs the topic's own code in the store, which only an operator "
                "allows: set lua_folds = true in emq.toml, or EMQ_LUA_FOLDS=true"
            )
        return topic

    def changed(self, topic: Topic, changes: Mapping[str, Any]) -> Topic:
        """Return the topic with other settings: fields, or single options by their names.

        Raises:
            InvalidTopic: a setting is unknown, may not change, or is out of range; or as `permit`.
        """
        changing.validate(topic.name, changes)
        return self.permit(self.checked(changing.kept(topic, changing.merged(topic, changes))), topic)

"""The topics that a catalog takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from emq.runtime import errors, extending
from emq.storage import folds
from emq.topics import asking, changing, families, model, rules
from emq.topics.families import Family, differing
from emq.topics.model import DEFAULT_PRIORITIES, Topic, called


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
            raise errors.InvalidTopic(f"{called(topic.name)}: {exc}") from exc
        return model.split(topic)

    def adopted(self, topic: Topic, family: Family | None) -> Topic:
        """Return a checked topic as one of a family: with the family's settings, except for its own.

        Args:
            family: None for a topic of no family.

        Raises:
            InvalidTopic: these settings do not go together.
        """
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
                f"{called(topic.name)}: a fold in Lua runs the topic's own code in the store, which only an operator "
                "allows: set lua_folds = true in emq.toml, or EMQ_LUA_FOLDS=true"
            )
        return topic

    def changed(self, topic: Topic, changes: Mapping[str, Any]) -> Topic:
        """Return the topic with other settings: fields, or single options by their names.

        Raises:
            InvalidTopic: a setting is unknown, may not change, or is out of range; or as `permit`.
        """
        changing.validate(called(topic.name), changes)
        return self.permit(self.checked(changing.kept(topic, changing.merged(topic, changes))), topic)

    def set_for(self, topic: Topic, changes: Mapping[str, Any]) -> Topic:
        """Return the topic as `changed`; if it belongs to a family, these settings are its own from now on."""
        after = self.changed(topic, changes)
        if not topic.family:
            return after
        options = differing(after, topic) if "options" in changes else ()
        return msgspec.structs.replace(after, own=families.ordered({*topic.own, *changes, *options}))

    def inherited(self, topic: Topic, family: Family, names: Collection[str]) -> Topic:
        """Return the topic with the family's values of these settings, which are not its own any more.

        Raises:
            InvalidTopic: a setting is unknown, or never changes; or as `changed`.
        """
        after = self.changed(topic, families.inherited(topic, family, names))
        return msgspec.structs.replace(after, own=tuple(name for name in topic.own if name not in names))

    def following(self, topic: Topic, before: Topic, after: Topic) -> Topic:
        """Return a topic of a family after a change of the family's settings.

        Raises:
            InvalidTopic: the family's settings do not go together with the topic's own; or as `permit`.
        """
        wanted = {name: asking.value(after, name) for name in differing(after, before) if name not in topic.own}
        if topic.own:
            return families.settled(self.changed(topic, wanted) if wanted else topic, after)
        # All settings are the family's, which are checked.
        same = {"qps": after.qps, "group_qps": after.group_qps, "state": after.state, "options": after.options}
        return model.split(msgspec.structs.replace(topic, **same))

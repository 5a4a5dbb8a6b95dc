"""EMQ: tens of thousands of queues, each consumed at no more than its own rate, in priority order, at least once."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emq.app import App
    from emq.app.client import Client
    from emq.app.typed_family import TypedFamily
    from emq.calls.dependencies import Depends
    from emq.calls.middleware import HandleNext, HandlerCall, Middleware, PublishCall, PublishNext
    from emq.groups.receiver import Delivery
    from emq.observe.dead_letters import Selection
    from emq.producer.outcomes import Repeated
    from emq.runtime.environment import Environment
    from emq.runtime.errors import (
        ChangedMeanwhile,
        ClusterUnavailable,
        DatabaseInDoubt,
        DatabaseUnavailable,
        EMQError,
        FamilyFull,
        ForeignTree,
        GiveBack,
        HookFailed,
        HostConflict,
        InvalidMessage,
        InvalidPool,
        InvalidSettings,
        InvalidTopic,
        KeyDamaged,
        MessagesLost,
        NoDatabase,
        NotOwner,
        OutcomeUnknown,
        PartialFailure,
        QueueSealed,
        Reject,
        Retry,
        StillConsumed,
        StillNamed,
        StoreFull,
        StoreUnavailable,
        TaskRefused,
        TasksWaiting,
        TopicClosed,
        TopicExists,
        TopicFull,
        UnknownPool,
        UnknownTask,
        UnknownTopic,
        WrongState,
    )
    from emq.runtime.settings import Settings
    from emq.storage.durability import Durability
    from emq.storage.message import Message
    from emq.topics.model import Kind, State, Topic, TopicOptions

__all__ = [
    "App",
    "ChangedMeanwhile",
    "Client",
    "ClusterUnavailable",
    "DatabaseInDoubt",
    "DatabaseUnavailable",
    "Delivery",
    "Depends",
    "Durability",
    "EMQError",
    "Environment",
    "FamilyFull",
    "ForeignTree",
    "GiveBack",
    "HandleNext",
    "HandlerCall",
    "HookFailed",
    "HostConflict",
    "InvalidMessage",
    "InvalidPool",
    "InvalidSettings",
    "InvalidTopic",
    "KeyDamaged",
    "Kind",
    "Message",
    "MessagesLost",
    "Middleware",
    "NoDatabase",
    "NotOwner",
    "OutcomeUnknown",
    "PartialFailure",
    "PublishCall",
    "PublishNext",
    "QueueSealed",
    "Reject",
    "Repeated",
    "Retry",
    "Selection",
    "Settings",
    "State",
    "StillConsumed",
    "StillNamed",
    "StoreFull",
    "StoreUnavailable",
    "TaskRefused",
    "TasksWaiting",
    "Topic",
    "TopicClosed",
    "TopicExists",
    "TopicFull",
    "TopicOptions",
    "TypedFamily",
    "UnknownPool",
    "UnknownTask",
    "UnknownTopic",
    "WrongState",
]

_HOMES = {
    "App": "emq.app",
    "ChangedMeanwhile": "emq.runtime.errors",
    "Client": "emq.app.client",
    "ClusterUnavailable": "emq.runtime.errors",
    "DatabaseInDoubt": "emq.runtime.errors",
    "DatabaseUnavailable": "emq.runtime.errors",
    "Delivery": "emq.groups.receiver",
    "Depends": "emq.calls.dependencies",
    "Durability": "emq.storage.durability",
    "EMQError": "emq.runtime.errors",
    "Environment": "emq.runtime.environment",
    "FamilyFull": "emq.runtime.errors",
    "ForeignTree": "emq.runtime.errors",
    "GiveBack": "emq.runtime.errors",
    "HandleNext": "emq.calls.middleware",
    "HandlerCall": "emq.calls.middleware",
    "HookFailed": "emq.runtime.errors",
    "HostConflict": "emq.runtime.errors",
    "InvalidMessage": "emq.runtime.errors",
    "InvalidPool": "emq.runtime.errors",
    "InvalidSettings": "emq.runtime.errors",
    "InvalidTopic": "emq.runtime.errors",
    "KeyDamaged": "emq.runtime.errors",
    "Kind": "emq.topics.model",
    "Message": "emq.storage.message",
    "MessagesLost": "emq.runtime.errors",
    "Middleware": "emq.calls.middleware",
    "NoDatabase": "emq.runtime.errors",
    "NotOwner": "emq.runtime.errors",
    "OutcomeUnknown": "emq.runtime.errors",
    "PartialFailure": "emq.runtime.errors",
    "PublishCall": "emq.calls.middleware",
    "PublishNext": "emq.calls.middleware",
    "QueueSealed": "emq.runtime.errors",
    "Reject": "emq.runtime.errors",
    "Repeated": "emq.producer.outcomes",
    "Retry": "emq.runtime.errors",
    "Selection": "emq.observe.dead_letters",
    "Settings": "emq.runtime.settings",
    "State": "emq.topics.model",
    "StillConsumed": "emq.runtime.errors",
    "StillNamed": "emq.runtime.errors",
    "StoreFull": "emq.runtime.errors",
    "StoreUnavailable": "emq.runtime.errors",
    "TaskRefused": "emq.runtime.errors",
    "TasksWaiting": "emq.runtime.errors",
    "Topic": "emq.topics.model",
    "TopicClosed": "emq.runtime.errors",
    "TopicExists": "emq.runtime.errors",
    "TopicFull": "emq.runtime.errors",
    "TopicOptions": "emq.topics.model",
    "TypedFamily": "emq.app.typed_family",
    "UnknownPool": "emq.runtime.errors",
    "UnknownTask": "emq.runtime.errors",
    "UnknownTopic": "emq.runtime.errors",
    "WrongState": "emq.runtime.errors",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line starts without loading SQLAlchemy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
